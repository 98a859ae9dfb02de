"""The Events of a TrainingJob for its user: one for each state transition."""

from collections.abc import Iterator

from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import CheckpointStatus, TrainingJobStatus
from holdfast.pods.start_problems import RESTORING, is_ordinary
from holdfast.runtime.status import EventMessage


def events_for(job: TrainingJob, status: TrainingJobStatus) -> Iterator[EventMessage]:
    """The Events for the transition from the job's present status to `status`."""
    old = job.status or TrainingJobStatus()
    if status.restart_count != old.restart_count:
        # A new attempt without a failure was requested: a different number of workers, or a changed spec.
        failed = status.restarts != old.restarts
        yield EventMessage("Restarting", f"attempt {status.restart_count}: {status.message}", warning=failed)
    elif status.state != old.state:
        yield from _transition(old, status)
    elif status.message != old.message and _waits_for_something(status):
        yield EventMessage("Waiting", status.message or "", warning=not is_ordinary(status.message or ""))
    yield from _resumed(old, status)


def _waits_for_something(status: TrainingJobStatus) -> bool:
    """Workers that merely have not started yet need no Event; a message that names a cause does."""
    starting = status.state in ("Initializing", "Restarting")
    ordinary = (status.message or "").endswith(("workers to start", RESTORING))
    return status.state == "Pending" or (starting and not ordinary)


def _resumed(old: TrainingJobStatus, status: TrainingJobStatus) -> Iterator[EventMessage]:
    before, now = old.checkpoint or CheckpointStatus(), status.checkpoint or CheckpointStatus()
    # After an attempt that saved nothing, the next attempt resumes from the same checkpoint.
    is_first_report = status.epochs is not None and (old.epochs is None or old.epochs.attempt != status.epochs.attempt)
    if now.resumed_from and (is_first_report or now.resumed_from != before.resumed_from):
        yield EventMessage("Resumed", f"attempt {status.restart_count} goes on from {now.resumed_from}")


def _transition(old: TrainingJobStatus, status: TrainingJobStatus) -> Iterator[EventMessage]:
    match status.state:
        case "Pending":
            yield EventMessage("Waiting", status.message or "", warning=True)
        case "Initializing":
            verb = "started" if old.state == "Suspended" else "made"
            yield EventMessage("WorkersCreated", f"{verb} {_workers(status)}")
        case "Running":
            yield EventMessage("Started", f"running with {_workers(status)}")
        case "Restarting":
            yield EventMessage("Restarting", status.message or "", warning=True)
        case "Suspended":
            yield EventMessage("Suspended", status.message or "")
        case "Completed":
            yield EventMessage("Completed", f"finished after {status.duration}: {status.message}")
        case "Failed":
            yield EventMessage("Failed", status.failure_reason or "", warning=True)


def _workers(status: TrainingJobStatus) -> str:
    count = status.workers.desired if status.workers else 0
    return "1 worker" if count == 1 else f"{count} workers"
