"""Finds the worker failure that broke an attempt, and its cause.

When several workers fail at once, the failure that explains the others counts: when one worker is taken away, the
others fail in many ways.
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
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot


def find_failure(observed: TrainingJobSnapshot) -> WorkerFailure | None:
    """The failure of the current attempt; None while it is healthy."""
    job = observed.current_job
    if job is None or job.metadata.deletion_timestamp:
        if observed.state in ("Initializing", "Running") and not observed.job.spec.suspend:
            return WorkerFailure(cause="infrastructure", message="the workers' Job was deleted from outside")
        return None
    if job.spec.suspend or observed.succeeded:
        return None
    found = sorted(_failures(job, observed), key=lambda each: each[0])
    if found:
        return _check_first_start(found[0][1], observed)
    if job.condition("Failed") or job.condition("FailureTarget"):
        # The pod of a worker that failed by itself still exists; only a deleted pod is gone.
        return WorkerFailure(cause="infrastructure", message="a worker was deleted from outside")
    return None


def _check_first_start(failure: WorkerFailure, observed: TrainingJobSnapshot) -> WorkerFailure | None:
    """Marks the failure permanent when no worker finds its command: the spec or the image is wrong, no attempt can run.

    A single worker may be on a node where something is missing, so the result is None until the others show the same
    failure. Once a worker has run, the command exists.
    """
    missing = [pod for pod in observed.pods if could_not_start(pod)]
    others = [pod for pod in observed.pods if pod not in missing]
    if failure.cause != "application" or not missing or not _is_first_start(observed):
        return failure
    if len(observed.pods) < observed.job.spec.num_workers or any(pod.status.phase != "Pending" for pod in others):
        return failure
    if not all(pod.is_terminating for pod in others):
        return None
    return structs.replace(failure, permanent=True)


def _is_first_start(observed: TrainingJobSnapshot) -> bool:
    """A Job that resumes after a suspension has a later startTime than the TrainingJob."""
    began, job = observed.status.start_time, observed.current_job
    return not observed.status.restart_count and job is not None and began in (None, "", job.status.start_time)


def _failures(
    job: Job, observed: TrainingJobSnapshot
) -> Iterator[tuple[tuple[int, bool, bool, datetime, int], WorkerFailure]]:
    """Each failure with its sort key: within a class, a deletion explains least and a permanent cause most."""
    nodes, pods = observed.nodes, tuple(pod for pod in observed.pods if not _stopped_by_suspend(pod, job))
    failed = _failed_pods(pods)
    first_failed_at = min((failed_at(pod) for pod in failed if not was_deleted_first(pod)), default=None)
    failing = bool(job.condition("FailureTarget") or job.condition("Failed"))
    for pod in pods:
        if not failed and pod.metadata.uid in observed.saving_pods:
            continue
        collateral = (
            failing if first_failed_at is None else pod.is_terminating and deletion_requested_at(pod) >= first_failed_at
        )
        # A worker on an unreachable node may come back; if another worker has failed meanwhile, the node was the cause.
        failure = lost_with_node(pod, nodes) if first_failed_at is not None and not pod.is_finished else None
        failure = failure or (
            classify_failure(pod, nodes, collateral=collateral) if pod in failed or pod.is_terminating else None
        )
        if failure is not None:
            order = (CLASSES.index(failure.cause), was_deleted_first(pod), not failure.permanent)
            yield (*order, failed_at(pod), index_of(pod)), failure


def _stopped_by_suspend(pod: Pod, job: Job) -> bool:
    """A suspension stopped the pod, which still exists after the Job resumed: startTime is that of the last start."""
    if not pod.is_terminating or job.condition("Suspended"):
        return pod.is_terminating
    started, created = job.status.start_time, pod.metadata.creation_timestamp
    if not started or not created or parse_time(created) >= parse_time(started):
        return False
    return is_being_removed(pod) or deletion_requested_at(pod) <= parse_time(started)


def _failed_pods(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Pods that have failed, or whose container has.

    A pod fails only once its sidecar has saved all checkpoints, so another pod may fail earlier and not be the cause.
    From the first worker that fails by itself on, the Job controller terminates the others.
    """
    if not any(pod.status.phase == "Failed" for pod in pods):
        return ()
    return tuple(pod for pod in pods if pod.status.phase == "Failed" or failed_container(pod) is not None)
