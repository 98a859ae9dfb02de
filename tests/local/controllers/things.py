"""Jobs, pods and machines for tables, with little said about each."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec

from holdfast.api.core.objects import JOB_TRACKING, Node, NodeCondition, Pod, PodCondition
from holdfast.api.meta import ObjectMeta, OwnerReference
from holdfast.cluster.protocol import JSON
from holdfast.local.controllers.job_pods import FAILURES, INDEX
from holdfast.local.controllers.objects import TemplatedJob
from holdfast.times import format_time

NOW = datetime(2026, 4, 5, 12, tzinfo=UTC)
_numbers = count()


def ago(seconds: float) -> str:
    return format_time(NOW - timedelta(seconds=seconds))


def job(*, status: JSON | None = None, **spec: Any) -> TemplatedJob:
    metadata = {"name": "one", "namespace": "ns", "uid": "job-uid", "resourceVersion": "7"}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status or {}}, TemplatedJob)


def indexed_job(workers: int, *, status: JSON | None = None, **spec: Any) -> TemplatedJob:
    both = {"completions": workers, "parallelism": workers, **spec}
    return job(status=status, completionMode="Indexed", **both)


def worker(
    phase: str = "Running",
    *,
    index: int | None = None,
    uid: str = "",
    exit_code: int | None = None,
    ended: str = "",
    deleted: str = "",
    made: str = "",
    tracked: bool = True,
    failures: int | None = None,
    conditions: dict[str, str] | None = None,
    restarts: int = 0,
    restart_policy: str = "Never",
) -> Pod:
    """A pod of the Job `one`."""
    number = next(_numbers)
    code = exit_code if exit_code is not None else 1 if phase == "Failed" else 0
    terminated = {"exitCode": code, "finishedAt": ended or ago(0)} if phase in ("Succeeded", "Failed") else None
    state = {"terminated": terminated} if terminated else {}
    meta = ObjectMeta(
        name=f"pod-{number}",
        namespace="ns",
        uid=uid or f"uid-{number}",
        creation_timestamp=made or ago(100),
        deletion_timestamp=deleted,
        deletion_grace_period_seconds=30 if deleted else None,
        annotations=({INDEX: str(index)} if index is not None else {})
        | ({FAILURES: str(failures)} if failures is not None else {}),
        finalizers=(JOB_TRACKING,) if tracked else (),
        owner_references=(
            OwnerReference(api_version="batch/v1", kind="Job", name="one", uid="job-uid", controller=True),
        ),
    )
    body = {
        "metadata": msgspec.to_builtins(meta),
        "spec": {"containers": [{"name": "main"}], "restartPolicy": restart_policy},
        "status": {
            "phase": phase,
            "conditions": [{"type": kind, "status": status} for kind, status in (conditions or {}).items()],
            "containerStatuses": [{"name": "main", "restartCount": restarts, "state": state}],
        },
    }
    return msgspec.convert(body, Pod)


def pod(name: str = "p", *, namespace: str = "ns", labels: JSON | None = None, node: str = "", **spec: Any) -> Pod:
    """A pod that belongs to nobody."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "labels": labels or {}}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": node, **spec}}, Pod)


def asking(init: tuple[JSON, ...] = (), /, **requests: str) -> JSON:
    """A spec with one container that asks for so much; `__` stands for the slash of a resource's name."""
    named = {name.replace("__", "/"): amount for name, amount in requests.items()}
    return {"containers": [{"name": "main", "resources": {"requests": named}}], "initContainers": list(init)}


def node(
    name: str = "m", *, labels: JSON | None = None, ready: str = "True", room: JSON | None = None, **spec: Any
) -> Node:
    offered = {"cpu": "4", "memory": "8Gi", "pods": "10", **(room or {})}
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
        },
        "spec": spec,
        "status": {"allocatable": offered, "conditions": [{"type": "Ready", "status": ready}] if ready else []},
    }
    return msgspec.convert(body, Node)


def pod_condition(kind: str, status: str, **more: str) -> PodCondition:
    return msgspec.convert({"type": kind, "status": status, **more}, PodCondition)


def node_condition(kind: str, status: str, **more: str) -> NodeCondition:
    return msgspec.convert({"type": kind, "status": status, **more}, NodeCondition)
