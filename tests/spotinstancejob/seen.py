"""What is observed of the job `ml/bert`, for tests of its decisions: a function takes only what its test is about."""

from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.snapshot import SpotInstanceJobSnapshot
from tests.spotinstancejob.jobs import replica_pod, spot_job
from tests.spotinstancejob.machines import READY, machine, template
from tests.trainingjobs import node, stamp

JSON = dict[str, Any]


def replica(number: int = 0, phase: str = "Running", *, attempt: int = 0, **fields: Any) -> JSON:
    """A replica as status has it: by default it runs on the node `gpu-{number}`."""
    where = {"nodeName": f"gpu-{number}"} if phase in ("Starting", "Running") else {}
    name = names.job_name("bert", number, attempt)
    return {"name": name, "replica": number, "attempt": attempt, "phase": phase, **where, **fields}


def job_of(number: int = 0, *conditions: str, attempt: int = 0, deleted: bool = False) -> Job:
    """The Job of an attempt, with the conditions that hold."""
    name = names.job_name("bert", number, attempt)
    metadata: JSON = {
        "name": name,
        "namespace": "ml",
        "uid": f"uid-of-{name}",
        "labels": names.replica_labels("bert", number, attempt),
    }
    if deleted:
        metadata["deletionTimestamp"] = stamp(0)
    held = [{"type": kind, "status": "True"} for kind in conditions]
    return msgspec.convert({"metadata": metadata, "status": {"startTime": stamp(0), "conditions": held}}, Job)


def pod_of(number: int = 0, *, attempt: int = 0, started: float = 0, **more: Any) -> Pod:
    """The pod of an attempt, by default running on the node `gpu-{number}`."""
    pod = replica_pod(number, attempt=attempt, **{"node": f"gpu-{number}", "startTime": stamp(started), **more})
    return structs.replace(pod, metadata=structs.replace(pod.metadata, creation_timestamp=stamp(started)))


def failed_pod(number: int = 0, exit_code: int = 1, *, attempt: int = 0, reason: str = "Error", **end: Any) -> Pod:
    terminated = {"exitCode": exit_code, "reason": reason, "finishedAt": stamp(60), **end}
    containers = [{"name": "training", "state": {"terminated": terminated}}]
    return pod_of(number, attempt=attempt, phase="Failed", containerStatuses=containers)


def serving(number: int = 0, *, attempt: int = 0, on: str = "", **status: Any) -> ProvisionedInstance:
    """A machine that has become the node `gpu-{number}`."""
    fields = {"phase": "Serve", "nodeName": on or f"gpu-{number}", "conditions": READY, **status}
    return machine(number, attempt=attempt, **fields)


def seen(
    *replicas: JSON,
    job: SpotInstanceJob | None = None,
    status: JSON | None = None,
    pods: tuple[Pod, ...] | None = None,
    jobs: tuple[Job, ...] | None = None,
    nodes: tuple[Node, ...] | None = None,
    machines: tuple[ProvisionedInstance, ...] = (),
    backups: tuple[CheckpointBackup, ...] = (),
    **facts: Any,
) -> SpotInstanceJobSnapshot:
    """The job with these replicas in its status; those that have started have a Job, a pod and a node."""
    started = [each for each in replicas if each["phase"] in ("Starting", "Running")]
    body = {"jobStatuses": list(replicas), "startTime": stamp(0), "checkpointMode": "application", **(status or {})}
    it = structs.replace(job or spot_job(), status=msgspec.convert(body, SpotInstanceJobStatus))
    if jobs is None:
        jobs = tuple(job_of(each["replica"], attempt=each["attempt"]) for each in started)
    if pods is None:
        pods = tuple(pod_of(each["replica"], attempt=each["attempt"]) for each in started)
    if nodes is None:
        nodes = tuple(node(f"gpu-{number}") for number in range(4))
    return SpotInstanceJobSnapshot(
        **{
            "job": it,
            "jobs": {each.metadata.name: each for each in jobs},
            "pods": pods,
            "nodes": {each.metadata.name: each for each in nodes},
            "machines": {each.metadata.name: each for each in machines},
            "backups": {each.metadata.name: each for each in backups},
            "template": template(),
            **facts,
        }
    )
