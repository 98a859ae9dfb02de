"""Why a TrainingJob failed, with the worker that failed first."""

from collections.abc import Iterable

from holdfast.api.builtin import ContainerStateTerminated, JobCondition, Pod

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
LAST_WORDS = 512


def failure_reason(condition: JobCondition, pods: Iterable[Pod]) -> str:
    """The Job's verdict, and what the first worker to fail left behind."""
    verdict = f"{condition.reason}: {condition.message}" if condition.message else condition.reason
    failed = [(pod, end) for pod in pods if (end := _failed_end(pod)) is not None]
    if not failed:
        return verdict
    # The others are deleted for the first one's failure, often within the same second.
    pod, end = min(failed, key=lambda each: (_was_stopped(each[0]), each[1].finished_at, each[0].metadata.name))
    return f"{verdict}; {_worker(pod, end)}"


def _was_stopped(pod: Pod) -> bool:
    return bool(pod.metadata.deletion_timestamp)


def _failed_end(pod: Pod) -> ContainerStateTerminated | None:
    ends = (status.state.terminated for status in pod.status.container_statuses)
    return next((end for end in ends if end is not None and (end.exit_code or end.signal)), None)


def _worker(pod: Pod, end: ContainerStateTerminated) -> str:
    index = pod.metadata.labels.get(INDEX_LABEL, "?")
    place = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    cause = f" ({end.reason})" if end.reason and end.reason != "Error" else ""
    words = end.message.strip()[-LAST_WORDS:]
    return f"worker {index}{place} exited with code {end.exit_code}{cause}" + (f": {words}" if words else "")
