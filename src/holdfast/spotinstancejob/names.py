"""Names and labels of a SpotInstanceJob's children: functions of the job, the replica and the attempt."""

from typing import Any, NamedTuple

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import KIND, REPLICA_LABEL, SPOT_JOB_LABEL, SpotInstanceJob
from holdfast.pods.template import MANAGED_BY

ATTEMPT_LABEL = "holdfast.dev/attempt"


def job_name(job: str, replica: int, attempt: int) -> str:
    """The Job of one attempt of one replica; `job` is the SpotInstanceJob's name."""
    return f"{job}-r{replica}-{attempt}" if attempt else f"{job}-r{replica}"


def machine_object_name(job: str, replica: int, attempt: int, machine: int) -> str:
    """The ProvisionedInstance of an attempt's k-th machine."""
    return f"{job}-r{replica}-{attempt}-m{machine}"


def backup_name(job: str, replica: int, number: int) -> str:
    """The CheckpointBackup of one checkpoint; numbers are the job's, so that no two replicas share one."""
    return f"{job}-r{replica}-c{number}"


def base_image_pod_name(job: str, replica: int, attempt: int) -> str:
    """The pod that brings the base images of a checkpoint to the node of an attempt."""
    return f"{job_name(job, replica, attempt)}-base-image"


def reports_name(job: str) -> str:
    """The ConfigMap that tells sidecars where to report."""
    return f"{job}-reports"


def pull_secret_name(job: str) -> str:
    """The Secret with a token of an hour, by which a restored pod fetches its images."""
    return f"{job}-pull"


def job_labels(job: str) -> dict[str, str]:
    """For every child."""
    return {SPOT_JOB_LABEL: job, MANAGED_BY: "holdfast"}


def replica_labels(job: str, replica: int, attempt: int) -> dict[str, str]:
    """For every child of one attempt of one replica."""
    return {**job_labels(job), REPLICA_LABEL: str(replica), ATTEMPT_LABEL: str(attempt)}


def owner_reference(job: SpotInstanceJob, *, controller: bool = True) -> dict[str, Any]:
    reference = {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
    }
    return {**reference, "controller": True, "blockOwnerDeletion": True} if controller else reference


def child_metadata(job: SpotInstanceJob, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Metadata of a child that is deleted together with the job."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(job)],
    }


class ReplicaPod(NamedTuple):
    """Whose pod it is."""

    job: Key
    replica: int
    attempt: int


def replica_of(pod: Pod) -> ReplicaPod | None:
    """None for other pods, whatever labels they have.

    Any user can copy labels. The controller reference counts: a pod whose owner does not exist is deleted by the
    garbage collector.
    """
    labels, owner = pod.metadata.labels, pod.metadata.controller
    name, replica, attempt = (labels.get(key, "") for key in (SPOT_JOB_LABEL, REPLICA_LABEL, ATTEMPT_LABEL))
    if labels.get(MANAGED_BY) != "holdfast" or owner is None or owner.kind != "Job":
        return None
    if not (_is_number(replica) and _is_number(attempt)):
        return None
    found = ReplicaPod(Key(pod.metadata.namespace, name), int(replica), int(attempt))
    return found if owner.name == job_name(name, found.replica, found.attempt) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
