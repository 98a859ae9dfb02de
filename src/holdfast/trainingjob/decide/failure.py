"""Which worker a broken attempt lost first, and to what.

When several things went wrong at once, the one that explains the others counts: workers fail in all ways when one of
them is taken away.
"""

from collections.abc import Iterator
from datetime import datetime

from msgspec import structs

from holdfast.api.core.objects import Job, Pod
from holdfast.pods.failure import (
    CLASSES,
    WorkerFailure,
    classify_failure,
    could_not_start,
    deletion_requested_at,
    failed_at,
    failed_container,
    index_of,
    is_being_removed,
    lost_with_node,
    was_deleted_first,
)
from holdfast.times import parse_time
from holdfast.trainingjob.decide.snapshot import Observed


def find_failure(observed: Observed) -> WorkerFailure | None:
    """What broke the current attempt, if anything did."""
    job = observed.current_job
    if job is None or job.metadata.deletion_timestamp:
        if observed.state in ("Initializing", "Running") and not observed.job.spec.suspend:
            return WorkerFailure(cause="infrastructure", message="the workers' Job was deleted from outside")
        return None
    if job.spec.suspend or observed.succeeded:
        return None
    found = sorted(_losses(job, observed), key=lambda each: each[0])
    if found:
        return _at_first_start(found[0][1], observed)
    if job.condition("Failed") or job.condition("FailureTarget"):
        # A worker that failed by itself stays to be looked at; only one that was deleted is gone.
        return WorkerFailure(cause="infrastructure", message="a worker was deleted from outside")
    return None


def _at_first_start(loss: WorkerFailure, observed: Observed) -> WorkerFailure | None:
    """Where no worker finds its command, it is written wrong or the image lacks it: no attempt could run.

    One worker alone may be on a node where something is missing, so the others are waited for until they show the
    same. Once a worker has run, the command is there.
    """
    missing = [pod for pod in observed.pods if could_not_start(pod)]
    others = [pod for pod in observed.pods if pod not in missing]
    if loss.cause != "application" or not missing or not _is_first_start(observed):
        return loss
    if len(observed.pods) < observed.job.spec.num_workers or any(pod.status.phase != "Pending" for pod in others):
        return loss
    if not all(pod.is_terminating for pod in others):
        return None
    return structs.replace(loss, permanent=True)


def _is_first_start(observed: Observed) -> bool:
    """A Job that was suspended and goes on has a later startTime."""
    began, job = observed.status.start_time, observed.current_job
    return not observed.status.restart_count and job is not None and began in (None, "", job.status.start_time)


def _losses(job: Job, observed: Observed) -> Iterator[tuple[tuple[int, bool, bool, datetime, int], WorkerFailure]]:
    """Each with its rank: a deletion explains less than anything else of its class, a permanent cause more."""
    nodes, pods = observed.nodes, tuple(pod for pod in observed.pods if not _stopped_before(pod, job))
    failed = _failed(pods)
    broken = min((failed_at(pod) for pod in failed if not was_deleted_first(pod)), default=None)
    failing = bool(job.condition("FailureTarget") or job.condition("Failed"))
    for pod in pods:
        if not failed and pod.metadata.uid in observed.saving_pods:
            continue
        collateral = failing if broken is None else pod.is_terminating and deletion_requested_at(pod) >= broken
        # One that is silent with its node may come back; when another has failed meanwhile, that was the reason.
        loss = lost_with_node(pod, nodes) if broken is not None and not pod.is_finished else None
        loss = loss or (
            classify_failure(pod, nodes, collateral=collateral) if pod in failed or pod.is_terminating else None
        )
        if loss is not None:
            first = (CLASSES.index(loss.cause), was_deleted_first(pod), not loss.permanent)
            yield (*first, failed_at(pod), index_of(pod)), loss


def _stopped_before(pod: Pod, job: Job) -> bool:
    """Stopped when the Job was suspended, and still to be seen now that it goes on: startTime is of the last start."""
    if not pod.is_terminating or job.condition("Suspended"):
        return pod.is_terminating
    started, created = job.status.start_time, pod.metadata.creation_timestamp
    if not started or not created or parse_time(created) >= parse_time(started):
        return False
    return is_being_removed(pod) or deletion_requested_at(pod) <= parse_time(started)


def _failed(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """A pod fails when its sidecar has kept what there was to keep: another one may be earlier, and not be the cause.

    From the first worker that failed by itself on, the Job controller ends the others.
    """
    if not any(pod.status.phase == "Failed" for pod in pods):
        return ()
    return tuple(pod for pod in pods if pod.status.phase == "Failed" or failed_container(pod) is not None)
