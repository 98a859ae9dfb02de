"""How long pods of earlier attempts block the next attempt.

On a reachable node, two attempts never run at once. A pod on a node that is gone or not ready may never be reported as
ended; the next attempt waits until the pod's grace period and a timeout have passed. If the pod comes back, it is
deleted, and its files are in the folder of its own attempt.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.pods.failure import INDEX_LABEL
from holdfast.times import parse_time
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot, TrainingJobTiming


def blocking_pods(
    observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming, pods: tuple[Pod, ...]
) -> tuple[Pod, ...]:
    """The pods that the next attempt must wait for."""
    return tuple(
        pod
        for pod in pods
        if pod.metadata.uid not in observed.lost_pods and not _is_given_up(pod, observed.nodes, now, timing)
    )


def jobs_that_may_create_pods(
    observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming
) -> tuple[Job, ...]:
    """Old Jobs that could still create a pod: they have not ended, and some worker never had a pod.

    A Job that is being deleted creates no pods once its controller has seen the deletion; an unreachable pod can keep
    such a Job in place.
    """
    return tuple(
        job
        for job in observed.old_jobs
        if not has_stopped_creating(job)
        and not _has_created_all(job, observed.old_pods)
        and not (job.metadata.deletion_timestamp and now >= _given_up_at(job, timing))
    )


def unreachable(pods: tuple[Pod, ...], nodes: Mapping[str, Node]) -> tuple[Pod, ...]:
    """Terminating pods on unreachable nodes, whose end may never be reported."""
    return tuple(pod for pod in pods if pod.is_terminating and not _is_reachable(pod, nodes))


def give_up_times(observed: TrainingJobSnapshot, timing: TrainingJobTiming) -> Iterator[datetime]:
    """When unreachable pods and deleted Jobs stop blocking the next attempt."""
    for pod in unreachable((*observed.running_old_pods, *observed.pods), observed.nodes):
        if not pod.is_finished:
            yield _given_up_at(pod, timing)
    for job in observed.old_jobs:
        if job.metadata.deletion_timestamp:
            yield _given_up_at(job, timing)


def _given_up_at(deleted: Pod | Job, timing: TrainingJobTiming) -> datetime:
    return parse_time(deleted.metadata.deletion_timestamp) + timedelta(seconds=timing.lost_pod_timeout_s)


def _is_given_up(pod: Pod, nodes: Mapping[str, Node], now: datetime, timing: TrainingJobTiming) -> bool:
    if not pod.is_terminating or _is_reachable(pod, nodes):
        return False
    return now >= _given_up_at(pod, timing)


def _is_reachable(pod: Pod, nodes: Mapping[str, Node]) -> bool:
    """A pod without a node counts as reachable: it does not run, and is deleted at once."""
    node = nodes.get(pod.spec.node_name)
    return not pod.spec.node_name or (node is not None and node.is_ready)


def has_stopped_creating(job: Job) -> bool:
    return job.spec.suspend or any(job.condition(kind) for kind in ("Failed", "FailureTarget", "Complete"))


def _has_created_all(job: Job, pods: tuple[Pod, ...]) -> bool:
    """Our Jobs create one pod for each worker. Those of elastic jobs, with a backoffLimit, may replace pods."""
    size = job.spec.completions or 1
    created = {pod.metadata.labels.get(INDEX_LABEL) for pod in pods if _is_owned_by(job, pod)}
    if len(created) >= size:
        return True
    # Pods that were stopped may be gone, and only the Job that is being deleted still counts them.
    counts = job.status
    return job.spec.backoff_limit == 0 and counts.active + counts.terminating + counts.succeeded >= size


def _is_owned_by(job: Job, pod: Pod) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid
