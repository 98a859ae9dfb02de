"""Which replicas there are, and which attempt each of them is at. Pure."""

from datetime import datetime

from msgspec import structs

from holdfast.api.spotinstancejob import REPLICA_LABEL
from holdfast.api.spotinstancejob_status import ReplicaPhase, ReplicaStatus, SpotInstanceJobStatus
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.names import ATTEMPT_LABEL
from holdfast.spotinstancejob.snapshot import STARTED, SpotInstanceJobSnapshot, with_replica
from holdfast.times import format_time

# Sorts behind every time of a pod.
NOT_STARTED = "9999"


def match_replicas(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> SpotInstanceJobStatus:
    """As many replicas as the spec asks for: what has not started goes first, then what started last."""
    wanted, replicas = observed.job.spec.replicas, status.job_statuses
    if len(replicas) > wanted:
        oldest_first = sorted(replicas, key=lambda each: (started_at(observed, each), each.replica))
        kept = {each.replica for each in oldest_first[:wanted]}
        return structs.replace(status, job_statuses=tuple(each for each in replicas if each.replica in kept))
    taken = {each.replica for each in replicas}
    free = (number for number in range(wanted + len(taken)) if number not in taken)
    added = tuple(_first_attempt(observed, next(free)) for _ in range(wanted - len(replicas)))
    return structs.replace(status, job_statuses=replicas + added) if added else status


def started_at(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> str:
    """When the pod of a running replica was started; after all others for one that does not run."""
    pod = observed.pod_of(replica.name) if replica.phase == "Running" else None
    return (pod.status.start_time or NOT_STARTED) if pod is not None else NOT_STARTED


def next_attempt(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, phase: ReplicaPhase) -> ReplicaStatus:
    """The replica at its next attempt, which has neither node nor image yet; its checkpoints stay known."""
    attempt = replica.attempt + 1
    return ReplicaStatus(
        name=names.job_name(observed.job.metadata.name, replica.replica, attempt),
        replica=replica.replica,
        attempt=attempt,
        phase=phase,
        checkpoint_number=replica.checkpoint_number,
        checkpoint_time=replica.checkpoint_time,
        last_checkpoint_image=replica.last_checkpoint_image,
        last_checkpoint_time=replica.last_checkpoint_time,
        last_checkpoint_seconds=replica.last_checkpoint_seconds,
    )


def note_running(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime
) -> SpotInstanceJobStatus:
    """A replica whose pod has started runs; with the first one the job has started."""
    for replica in status.job_statuses:
        pod = observed.pod_of(replica.name)
        if replica.phase == "Starting" and pod is not None and pod.status.phase in ("Running", "Succeeded"):
            status = with_replica(status, structs.replace(replica, phase="Running"))
            status = structs.replace(status, start_time=status.start_time or format_time(now))
    return status


def is_running(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> bool:
    """Its container runs, and nobody is stopping it."""
    pod = observed.pod_of(replica.name)
    return replica.phase == "Running" and pod is not None and pod.status.phase == "Running" and not pod.is_terminating


def current_jobs(status: SpotInstanceJobStatus) -> frozenset[str]:
    """The Jobs that there are to be, by name."""
    return frozenset(each.name for each in status.job_statuses if each.phase in STARTED)


def _first_attempt(observed: SpotInstanceJobSnapshot, number: int) -> ReplicaStatus:
    """A number that was used before goes on counting while anything of it is left: names are never used twice."""
    labels = [each.metadata.labels for each in (*observed.jobs.values(), *observed.machines.values())]
    left = [int(each.get(ATTEMPT_LABEL, "0")) for each in labels if each.get(REPLICA_LABEL) == str(number)]
    attempt = max(left, default=-1) + 1
    return ReplicaStatus(
        name=names.job_name(observed.job.metadata.name, number, attempt),
        replica=number,
        attempt=attempt,
        phase="Pending",
    )
