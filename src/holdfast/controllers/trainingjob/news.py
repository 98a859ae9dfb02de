"""What a TrainingJob's user is told in events: one for each step of its life, and one for what is not acted on."""

from collections.abc import Iterator

from msgspec import Struct

from holdfast.api.trainingjob import TrainingJob, TrainingJobStatus


class News(Struct, frozen=True):
    reason: str
    message: str
    warning: bool = False


def news(job: TrainingJob, status: TrainingJobStatus) -> Iterator[News]:
    """What the step from the job's present status to `status` means for people."""
    before = job.status.state if job.status is not None else None
    if before is None:
        ignored = ", ".join(f"spec.{field}" for field in not_acted_on(job))
        if ignored:
            yield News("NotActedOn", f"this version of holdfast accepts but does not act on {ignored}", warning=True)
    if status.state != before:
        yield from _step(status)
    elif status.state == "Pending" and job.status is not None and status.message != job.status.message:
        yield News("Waiting", status.message or "", warning=True)


def not_acted_on(job: TrainingJob) -> list[str]:
    spec = job.spec
    written = {
        "checkpoint": spec.checkpoint is not None and spec.checkpoint.enabled,
        "monitoring.tensorboardEnabled": spec.monitoring is not None and spec.monitoring.tensorboard_enabled,
        "networking.rdmaEnabled": spec.networking is not None and spec.networking.rdma_enabled,
        "progressDeadlineSeconds": spec.progress_deadline_seconds is not None,
        "successPolicy": spec.success_policy is not None,
        "ttlSecondsAfterFinished": spec.ttl_seconds_after_finished is not None,
    }
    return [field for field, is_written in written.items() if is_written]


def _step(status: TrainingJobStatus) -> Iterator[News]:
    match status.state:
        case "Pending":
            yield News("Waiting", status.message or "", warning=True)
        case "Initializing":
            yield News("WorkersCreated", f"made {_workers(status)}")
        case "Running":
            yield News("Started", f"running with {_workers(status)}")
        case "Restarting":
            yield News("Restarting", status.message or "", warning=True)
        case "Suspended":
            yield News("Suspended", status.message or "")
        case "Completed":
            yield News("Completed", f"finished after {status.duration}")
        case "Failed":
            yield News("Failed", status.failure_reason or "", warning=True)


def _workers(status: TrainingJobStatus) -> str:
    count = status.workers.desired if status.workers else 0
    return "1 worker" if count == 1 else f"{count} workers"
