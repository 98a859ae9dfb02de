"""What a GPUWorkload's user is told in events: one for each step of its life."""

from collections.abc import Iterator

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.controllers.writing import EventMessage
from holdfast.planning.gpuworkload.status import MAKING_JOB, reason_of


def events_for(workload: GPUWorkload, status: GPUWorkloadStatus) -> Iterator[EventMessage]:
    """What the step from its present status to `status` means for people."""
    old, message = workload.status or GPUWorkloadStatus(), status.message or ""
    if (status.phase, reason_of(status)) == (old.phase, reason_of(old)):
        return  # other words for the same, such as its position in the line
    match status.phase:
        case "Pending":
            yield _pending(old, status)
        case "Scheduling" if status.job_name != old.job_name:
            strategy = workload.spec.scheduling_strategy
            yield EventMessage("NodeChosen", f"{strategy} chose {status.assigned_node} for Job {status.job_name}")
        case "Scheduling":
            yield EventMessage(reason_of(status), message, warning=not message.startswith(MAKING_JOB))
        case "Running" if old.phase != "Running":
            yield EventMessage("Started", message)
        case "Succeeded":
            yield EventMessage("Succeeded", message)
        case "Failed":
            yield EventMessage("Failed", message, warning=True)


def _pending(old: GPUWorkloadStatus, status: GPUWorkloadStatus) -> EventMessage:
    message = status.message or ""
    if status.retry_count != old.retry_count:
        return EventMessage("Retrying", f"retry {status.retry_count}: {message}", warning=True)
    if reason_of(status) == "Suspended":
        return EventMessage("Suspended", message)
    if old.assigned_node and not status.assigned_node:
        return EventMessage("Replacing", message, warning=True)
    return EventMessage("Waiting", message, warning=True)
