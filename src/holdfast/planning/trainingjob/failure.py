"""Why a TrainingJob failed, with the worker that failed first."""

from collections.abc import Iterable

from holdfast.api.builtin import ContainerStateTerminated, JobCondition, Pod

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
LAST_WORDS = 512


def failure_reason(condition: JobCondition, pods: Iterable[Pod]) -> str:
    """The Job's verdict, and what the first worker to fail left behind."""
    verdict = f"{condition.reason}: {condition.message}" if condition.message else condition.reason
    failed = sorted(
        ((end.finished_at, pod, end) for pod in pods if (end := _failed_end(pod)) is not None),
        key=lambda item: (item[0], item[1].metadata.name),
    )
    return f"{verdict}; {_worker(failed[0][1], failed[0][2])}" if failed else verdict


def _failed_end(pod: Pod) -> ContainerStateTerminated | None:
    ends = (status.state.terminated for status in pod.status.container_statuses)
    return next((end for end in ends if end is not None and (end.exit_code or end.signal)), None)


def _worker(pod: Pod, end: ContainerStateTerminated) -> str:
    index = pod.metadata.labels.get(INDEX_LABEL, "?")
    place = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    cause = f" ({end.reason})" if end.reason and end.reason != "Error" else ""
    words = end.message.strip()[-LAST_WORDS:]
    return f"worker {index}{place} exited with code {end.exit_code}{cause}" + (f": {words}" if words else "")
