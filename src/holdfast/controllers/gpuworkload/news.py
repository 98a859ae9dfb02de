"""What a GPUWorkload's user is told in events: one for each step of its life."""

from collections.abc import Iterator

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.controllers.writing import News
from holdfast.planning.gpuworkload.status import MAKING_JOB, why


def news(workload: GPUWorkload, status: GPUWorkloadStatus) -> Iterator[News]:
    """What the step from its present status to `status` means for people."""
    old, message = workload.status or GPUWorkloadStatus(), status.message or ""
    if (status.phase, why(status)) == (old.phase, why(old)):
        return  # other words for the same, such as its position in the line
    match status.phase:
        case "Pending":
            yield _pending(old, status)
        case "Scheduling" if status.job_name != old.job_name:
            strategy = workload.spec.scheduling_strategy
            yield News("NodeChosen", f"{strategy} chose {status.assigned_node} for Job {status.job_name}")
        case "Scheduling":
            yield News(why(status), message, warning=not message.startswith(MAKING_JOB))
        case "Running" if old.phase != "Running":
            yield News("Started", message)
        case "Succeeded":
            yield News("Succeeded", message)
        case "Failed":
            yield News("Failed", message, warning=True)


def _pending(old: GPUWorkloadStatus, status: GPUWorkloadStatus) -> News:
    message = status.message or ""
    if status.retry_count != old.retry_count:
        return News("Retrying", f"retry {status.retry_count}: {message}", warning=True)
    if why(status) == "Suspended":
        return News("Suspended", message)
    if old.assigned_node and not status.assigned_node:
        return News("Replacing", message, warning=True)
    return News("Waiting", message, warning=True)
