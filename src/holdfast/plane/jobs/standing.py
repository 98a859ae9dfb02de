"""How one pod of a Job stands."""

from datetime import datetime, timedelta

from holdfast.plane.objects import Job, Pod, condition
from holdfast.planning.times import parse_time

INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"


def index_of(pod: Pod) -> int | None:
    return _number(pod, INDEX)


def failures_before(pod: Pod) -> int:
    """How often its index had failed when the pod was made."""
    return _number(pod, FAILURES) or 0


def ignored_failures_before(pod: Pod) -> int:
    return _number(pod, IGNORED_FAILURES) or 0


def is_active(pod: Pod) -> bool:
    return not pod.has_ended and not pod.is_terminating


def has_failed(pod: Pod, job: Job) -> bool:
    """A pod that is being deleted may never get to say that it failed; it counts as that, unless the Job waits."""
    if pod.status.phase == "Failed":
        return True
    return pod.is_terminating and pod.status.phase != "Succeeded" and not job.replaces_only_failed


def is_ready(pod: Pod) -> bool:
    ready = condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def finished_at(pod: Pod) -> datetime:
    """When its containers ended; failing that, when it was no longer ready, or was told to end, or was made."""
    meta, ready = pod.metadata, condition(pod.status.conditions, "Ready")
    ended = _containers_ended(pod)
    if ended is not None:
        return ended
    if ready is not None and ready.status == "False" and ready.last_transition_time:
        return parse_time(ready.last_transition_time)
    if meta.deletion_timestamp:
        return parse_time(meta.deletion_timestamp) - timedelta(seconds=meta.deletion_grace_period_seconds or 0)
    return parse_time(meta.creation_timestamp)


def _containers_ended(pod: Pod) -> datetime | None:
    sidecars = {container.name for container in pod.spec.init_containers if container.is_sidecar}
    statuses = (
        *pod.status.container_statuses,
        *(status for status in pod.status.init_container_statuses if status.name in sidecars),
    )
    ends = [status.state.terminated.finished_at if status.state.terminated else None for status in statuses]
    moments = [parse_time(end) for end in ends if end]
    return max(moments) if moments and len(moments) == len(ends) else None


def _number(pod: Pod, annotation: str) -> int | None:
    text = pod.metadata.annotations.get(annotation, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None
