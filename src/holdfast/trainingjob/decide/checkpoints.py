"""Writes the checkpoints that sidecars report into the status."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.reports import CheckpointReport, Outcome, WorkerReport
from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.api.trainingjob_status import CheckpointStatus
from holdfast.pods.failure import sanitize
from holdfast.times import format_time
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES


class CheckpointWarning(Struct, frozen=True):
    """A warning event for users: a one-word reason and a message."""

    reason: str
    message: str


def apply_checkpoints(
    spec: TrainingJobSpec, status: CheckpointStatus | None, batch: WorkerReport, received: datetime
) -> CheckpointStatus | None:
    if not batch.checkpoints and batch.resumed is None:
        return status
    new = status or CheckpointStatus()
    for entry in batch.checkpoints:
        new = _apply_checkpoint(spec, new, entry, received - timedelta(seconds=batch.age_s(entry)))
    if batch.resumed is not None:
        new = structs.replace(new, resumed_from=batch.resumed.path)
        if new.last is None:
            new = structs.replace(new, last=batch.resumed.path, last_epoch=batch.resumed.epoch)
    return new


def checkpoint_warnings(batch: WorkerReport) -> Iterator[CheckpointWarning]:
    """Warnings from the report of any worker, not only of worker 0."""
    for entry in batch.checkpoints:
        because = sanitize(entry.reason) or "no reason was given"
        if entry.outcome == "quarantined":
            aside = "" if entry.path.startswith("oci://") else " and was put aside"
            message = f"checkpoint {entry.path} is corrupt{aside}, the one before it is used: {because}"
            yield CheckpointWarning("CheckpointQuarantined", message)
        elif entry.outcome == "failed":
            message = f"worker {batch.index} could not keep checkpoint {entry.path}, the training goes on: {because}"
            yield CheckpointWarning("CheckpointFailed", message)
        elif entry.outcome == "unrestored":
            message = f"worker {batch.index} can't start yet: what it resumes from is in {entry.path}: {because}"
            yield CheckpointWarning("CheckpointNotRestored", message)


def checkpoints_enabled(spec: TrainingJobSpec) -> bool:
    return spec.checkpoint is not None and spec.checkpoint.enabled


def _apply_checkpoint(
    spec: TrainingJobSpec, status: CheckpointStatus, entry: CheckpointReport, at: datetime
) -> CheckpointStatus:
    if entry.valid_count is not None:
        status = structs.replace(status, count=entry.valid_count, best=entry.best)
    if entry.outcome == "quarantined" and entry.path == status.best:
        status = structs.replace(status, best=None)
    if entry.outcome == "quarantined" and entry.path == status.last:
        return structs.replace(status, last=None, last_time=None, last_epoch=None)
    is_newer = status.last_epoch is None or entry.epoch >= status.last_epoch
    # A checkpoint within an epoch is overwritten under the same name. A restarted sidecar reports the end of an epoch
    # again, which is no change.
    is_change = entry.path != status.last or entry.step is not None or entry.epoch != status.last_epoch
    if entry.outcome == durable_outcome(spec) and is_newer and is_change:
        return structs.replace(status, last=entry.path, last_time=format_time(at), last_epoch=entry.epoch)
    return status


def durable_outcome(spec: TrainingJobSpec) -> Outcome:
    """The outcome from which on the next attempt finds a checkpoint: before its upload it is lost with its node."""
    storage = spec.checkpoint.storage if spec.checkpoint is not None else None
    return "completed" if storage is None or storage.type in ("pvc", "nfs") else "uploaded"


def store_in_use(job: TrainingJob, sharing: Iterable[TrainingJob], location: str) -> str:
    """Why the job waits for an earlier, unfinished job that stores checkpoints in the same location; "" without one.

    Each job would resume from the other's checkpoints, and delete them.
    """
    earlier = [other for other in sharing if _creation_order(other) < _creation_order(job) and not _has_ended(other)]
    if not earlier:
        return ""
    first = min(earlier, key=_creation_order)
    return (
        f"waiting for TrainingJob {first.metadata.key} to end, which keeps checkpoints in the same place ({location}): "
        "delete that job, or make this one with another checkpoint.storage.prefix"
    )


def _creation_order(job: TrainingJob) -> tuple[str, str, str]:
    return job.metadata.creation_timestamp, job.metadata.namespace, job.metadata.name


def _has_ended(job: TrainingJob) -> bool:
    return job.status is not None and job.status.state in FINISHED_STATES
