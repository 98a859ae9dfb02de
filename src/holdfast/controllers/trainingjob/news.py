"""What a TrainingJob's user is told in events: one for each step of its life, and one for what is not acted on."""

from collections.abc import Iterator

from msgspec import Struct

from holdfast.api.trainingjob import Checkpoint, TrainingJob, TrainingJobStatus

OBJECT_STORES = ("s3", "gcs", "azure")


class News(Struct, frozen=True):
    reason: str
    message: str
    warning: bool = False


def news(job: TrainingJob, status: TrainingJobStatus) -> Iterator[News]:
    """What the step from the job's present status to `status` means for people."""
    old = job.status or TrainingJobStatus()
    if old.state is None:
        yield from _ignored(job)
    if status.restart_count != old.restart_count:
        yield News("Restarting", f"attempt {status.restart_count}: {status.message}", warning=True)
    elif status.state != old.state:
        yield from _step(old, status)
    elif status.message != old.message and _waits_for_something(status):
        yield News("Waiting", status.message or "", warning=True)


def _waits_for_something(status: TrainingJobStatus) -> bool:
    """Workers that merely have not started yet are no news; a message that names a cause is."""
    starting = status.state in ("Initializing", "Restarting")
    return status.state == "Pending" or (starting and not (status.message or "").endswith("workers to start"))


def _ignored(job: TrainingJob) -> Iterator[News]:
    fields = ", ".join(f"spec.{field}" for field in not_acted_on(job))
    if fields:
        yield News("NotActedOn", f"this version of holdfast accepts but does not act on {fields}", warning=True)
    kept = job.spec.checkpoint
    storage = kept.storage if kept is not None and kept.enabled else None
    if storage is not None and storage.type in OBJECT_STORES:
        message = (
            f"this version of holdfast does not upload to {storage.type} yet: checkpoints stay in the workers' pods "
            "and are lost with them; use type pvc or nfs to go on after a loss"
        )
        yield News("CheckpointsNotKept", message, warning=True)


def not_acted_on(job: TrainingJob) -> list[str]:
    spec = job.spec
    kept = spec.checkpoint if spec.checkpoint is not None and spec.checkpoint.enabled else None
    written = {
        "checkpoint.resumeFrom": kept is not None and kept.resume_from is not None,
        "checkpoint.retention": kept is not None and kept.retention != Checkpoint().retention,
        "progressDeadlineSeconds": spec.progress_deadline_seconds is not None,
        "successPolicy": spec.success_policy is not None,
    }
    return [field for field, is_written in written.items() if is_written]


def _step(old: TrainingJobStatus, status: TrainingJobStatus) -> Iterator[News]:
    match status.state:
        case "Pending":
            yield News("Waiting", status.message or "", warning=True)
        case "Initializing":
            verb = "started" if old.state == "Suspended" else "made"
            yield News("WorkersCreated", f"{verb} {_workers(status)}")
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
