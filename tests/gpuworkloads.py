"""GPUWorkloads and what is seen of them, for tests: every function takes only what the test is about."""

from typing import Any

import msgspec

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.gpuworkload.snapshot import GPUWorkloadSnapshot
from tests.trainingjobs import UID, node, stamp

NODE = "gpu-3"
# What status says once a node is chosen.
CHOSEN = {"phase": "Scheduling", "assignedNode": NODE, "jobName": "eval-job", "lastScheduleTime": stamp(0)}
SCHEDULED = {**CHOSEN, "phase": "Scheduled"}
RUNNING = {**CHOSEN, "phase": "Running"}


def workload(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None) -> GPUWorkload:
    """A GPUWorkload `ml/eval` of two GPUs, with whatever else is given."""
    body: dict[str, Any] = {
        "metadata": {
            "name": "eval",
            "namespace": "ml",
            "uid": UID,
            "generation": 3,
            "resourceVersion": "7",
            "creationTimestamp": stamp(-60),
        },
        "spec": {"modelName": "resnet50", "gpuCount": 2, **(spec or {})},
    }
    if status is not None:
        body["status"] = status
    return msgspec.convert(body, GPUWorkload)


def job(name: str = "eval-job", *conditions: str, deleted: bool = False, started: float | None = 0) -> Job:
    """A try's Job, with the conditions that hold."""
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-of-{name}"}
    if deleted:
        metadata["deletionTimestamp"] = stamp(30)
    held = [{"type": kind, "status": "True"} for kind in conditions]
    status = {"startTime": stamp(started) if started is not None else "", "conditions": held}
    return msgspec.convert({"metadata": metadata, "status": status}, Job)


def pod(phase: str = "Running", *, on: str = NODE, deleted_at: float | None = None, **status: Any) -> Pod:
    metadata: dict[str, Any] = {"name": "eval-job-abcde", "namespace": "ml", "labels": {"gpu-workload": "eval"}}
    if deleted_at is not None:
        metadata |= {"deletionTimestamp": stamp(deleted_at), "deletionGracePeriodSeconds": 30}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": on}, "status": {"phase": phase, **status}}, Pod)


def failed(exit_code: int = 1, reason: str = "Error", message: str = "") -> Pod:
    end = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": stamp(60)}
    return pod("Failed", containerStatuses=[{"name": "workload", "state": {"terminated": end}}])


def pending(message: str) -> Pod:
    """One that the scheduler has no place for."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod("Pending", on="", conditions=[condition])


def seen(it: GPUWorkload, *, nodes: tuple[Node, ...] | None = None, **facts: Any) -> GPUWorkloadSnapshot:
    """It, on a node that is there and ready unless others are given."""
    there = {each.metadata.name: each for each in ((node(NODE),) if nodes is None else nodes)}
    return GPUWorkloadSnapshot(workload=it, nodes=there, **facts)
