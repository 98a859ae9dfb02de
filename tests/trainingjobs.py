"""TrainingJobs and what is seen of them, for tests: every function takes only what the test is about."""

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.meta import OwnerReference
from holdfast.api.trainingjob import TrainingJob
from holdfast.times import format_time

UID = "11111111-2222-3333-4444-555555555555"
INDEX = "batch.kubernetes.io/job-completion-index"
ATTEMPT = "holdfast.dev/attempt"

Stopped = TypeVar("Stopped", Pod, Job)


def at(seconds: float) -> datetime:
    """A moment, counted from when the workers' Job starts."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return format_time(at(seconds))


def training_job(spec: dict[str, Any] | None = None, *, status: dict[str, Any] | None = None) -> TrainingJob:
    """A TrainingJob `ml/bert` of two workers, with whatever else is given."""
    body: dict[str, Any] = {
        "metadata": {"name": "bert", "namespace": "ml", "uid": UID, "generation": 3, "resourceVersion": "7"},
        "spec": {"model": "cnn", "dataset": "mnist", "numWorkers": 2, **(spec or {})},
    }
    if status is not None:
        body["status"] = status
    return msgspec.convert(body, TrainingJob)


def workers(
    *,
    status: dict[str, Any] | None = None,
    name: str = "bert-training",
    conditions: dict[str, str] | None = None,
    suspend: bool = False,
    size: int = 2,
) -> Job:
    """The workers' Job; `conditions` are the types that hold, each with its reason."""
    held = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": "as told",
            "lastTransitionTime": "2026-01-01T02:13:20Z",
        }
        for kind, reason in (conditions or {}).items()
    ]
    started = {"startTime": "2026-01-01T00:00:00Z"}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "ml", "uid": f"uid-of-{name}"},
            "spec": {"parallelism": size, "completions": size, "suspend": suspend},
            "status": {**started, **(status or {}), "conditions": held},
        },
        Job,
    )


def worker(index: int, status: dict[str, Any], *, node: str = "", attempt: int = 0) -> Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"bert-training-{index}-abcde",
                "namespace": "ml",
                "labels": {INDEX: str(index), ATTEMPT: str(attempt), "training-job": "bert"},
                "creationTimestamp": stamp(0),
            },
            "spec": {"nodeName": node},
            "status": status,
        },
        Pod,
    )


def unschedulable(index: int, message: str) -> Pod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return worker(index, {"phase": "Pending", "conditions": [condition]})


def failed(
    index: int, exit_code: int, *, at: str, node: str = "gpu-3", reason: str = "Error", message: str = ""
) -> Pod:
    end = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": at}
    container = {"name": "trainer", "state": {"terminated": end}}
    return worker(index, {"phase": "Failed", "containerStatuses": [container]}, node=node)


def running(index: int, *, node: str = "gpu-3", attempt: int = 0) -> Pod:
    return worker(index, {"phase": "Running"}, node=node, attempt=attempt)


def deleted(thing: Stopped, *, asked: float, grace_s: int = 30) -> Stopped:
    """Told to go at that moment: deletionTimestamp is when its grace is over."""
    metadata = structs.replace(
        thing.metadata, deletion_timestamp=stamp(asked + grace_s), deletion_grace_period_seconds=grace_s
    )
    return structs.replace(thing, metadata=metadata)


def disrupted(pod: Pod, reason: str, message: str = "") -> Pod:
    """With the condition that Kubernetes puts on a pod that it takes away."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    conditions = (*msgspec.to_builtins(pod.status.conditions), condition)
    return structs.replace(
        pod, status=msgspec.convert({**msgspec.to_builtins(pod.status), "conditions": conditions}, type(pod.status))
    )


def owned(pod: Pod, job: Job) -> Pod:
    owner = OwnerReference(
        api_version="batch/v1", kind="Job", name=job.metadata.name, uid=job.metadata.uid, controller=True
    )
    return structs.replace(pod, metadata=structs.replace(pod.metadata, owner_references=(owner,)))


def node(name: str = "gpu-3", *, ready: bool = True, labels: dict[str, str] | None = None, taint: str = "") -> Node:
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []},
            "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]},
        },
        Node,
    )
