"""Which checkpoints a job has, from what its sidecars tell."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.reports import Checkpoint, Outcome, WorkerReport
from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.api.trainingjob_status import CheckpointStatus
from holdfast.pods.failure import sanitize
from holdfast.times import format_time
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES


class CheckpointWarning(Struct, frozen=True):
    """What people should hear of: one word, and a sentence."""

    reason: str
    message: str


def apply_checkpoints(
    spec: TrainingJobSpec, report: CheckpointStatus | None, batch: WorkerReport, received: datetime
) -> CheckpointStatus | None:
    if not batch.checkpoints and batch.resumed is None:
        return report
    new = report or CheckpointStatus()
    for entry in batch.checkpoints:
        new = _with(spec, new, entry, received - timedelta(seconds=batch.age_s(entry)))
    if batch.resumed is not None:
        new = structs.replace(new, resumed_from=batch.resumed.path)
        if new.last is None:
            new = structs.replace(new, last=batch.resumed.path, last_epoch=batch.resumed.epoch)
    return new


def checkpoint_warnings(batch: WorkerReport) -> Iterator[CheckpointWarning]:
    """Of any worker."""
    for entry in batch.checkpoints:
        because = sanitize(entry.reason) or "no reason was given"
        if entry.outcome == "quarantined":
            message = f"checkpoint {entry.path} is corrupt and was put aside, the one before it is used: {because}"
            yield CheckpointWarning("CheckpointQuarantined", message)
        elif entry.outcome == "failed":
            message = f"worker {batch.index} could not keep checkpoint {entry.path}, the training goes on: {because}"
            yield CheckpointWarning("CheckpointFailed", message)
        elif entry.outcome == "unrestored":
            message = f"worker {batch.index} can't start yet: what it resumes from is in {entry.path}: {because}"
            yield CheckpointWarning("CheckpointNotRestored", message)


def checkpoints_enabled(spec: TrainingJobSpec) -> bool:
    return spec.checkpoint is not None and spec.checkpoint.enabled


def _with(spec: TrainingJobSpec, report: CheckpointStatus, entry: Checkpoint, at: datetime) -> CheckpointStatus:
    if entry.kept is not None:
        report = structs.replace(report, count=entry.kept, best=entry.best)
    if entry.outcome == "quarantined" and entry.path == report.best:
        report = structs.replace(report, best=None)
    if entry.outcome == "quarantined" and entry.path == report.last:
        return structs.replace(report, last=None, last_time=None, last_epoch=None)
    is_newer = report.last_epoch is None or entry.epoch >= report.last_epoch
    # What is saved within an epoch is replaced under its name. The end of an epoch is told again by a sidecar that
    # starts anew, which is no news.
    is_news = entry.path != report.last or entry.step is not None or entry.epoch != report.last_epoch
    if entry.outcome == durable_outcome(spec) and is_newer and is_news:
        return structs.replace(report, last=entry.path, last_time=format_time(at), last_epoch=entry.epoch)
    return report


def durable_outcome(spec: TrainingJobSpec) -> Outcome:
    """From when on the next attempt finds it: what is not in the object store yet is lost with its node."""
    storage = spec.checkpoint.storage if spec.checkpoint is not None else None
    return "completed" if storage is None or storage.type in ("pvc", "nfs") else "uploaded"


def store_in_use(job: TrainingJob, sharing: Iterable[TrainingJob], place: str) -> str:
    """Why a job waits that keeps its checkpoints where an earlier, unfinished one does; "" if there is none.

    Each would resume from the other's checkpoints, and delete them.
    """
    earlier = [other for other in sharing if _age(other) < _age(job) and not _has_ended(other)]
    if not earlier:
        return ""
    first = min(earlier, key=_age)
    return (
        f"waiting for TrainingJob {first.metadata.key} to end, which keeps checkpoints in the same place ({place}): "
        "delete that job, or make this one with another checkpoint.storage.prefix"
    )


def _age(job: TrainingJob) -> tuple[str, str, str]:
    return job.metadata.creation_timestamp, job.metadata.namespace, job.metadata.name


def _has_ended(job: TrainingJob) -> bool:
    return job.status is not None and job.status.state in FINISHED_STATES
