"""How far a training is, from what its sidecar tells: never backwards within an attempt.

All that the next report is judged by is in the status itself, so that an operator that starts anew goes on from there.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.reports import MOST_METRICS, Checkpoint, Progress, TerminationReport, WorkerReport
from holdfast.api.trainingjob import TrainingJobSpec
from holdfast.api.trainingjob_status import CheckpointStatus, EpochProgress, TrainingJobStatus
from holdfast.pods.failure import SIDECAR, index_of
from holdfast.times import format_time, parse_time
from holdfast.train.progress import METRIC as GPU_UTILIZATION
from holdfast.trainingjob.decide import checkpoints, success
from holdfast.trainingjob.decide.checkpoints import durable_outcome
from holdfast.trainingjob.decide.snapshot import Observed

# Worker 0 speaks for all: the others train the same epochs.
REPORTING_WORKER = 0
WRITE_EVERY_S = 5.0
# The pace is that of the last few epochs, or of a tenth of a training that has only a few.
PACE_EPOCHS = 3.0
FORESEEABLE_S = 10 * 365 * 86400.0


class ProgressMark(NamedTuple):
    """Where a training was when."""

    position: float
    at: datetime


def next_write_at(last_write: datetime | None, now: datetime) -> datetime:
    """When progress may be written next: not before `now`, and seldom enough for an API server with many jobs."""
    if last_write is None or last_write > now:  # a clock that was set back must not hold up the next write
        return now
    return max(now, last_write + timedelta(seconds=WRITE_EVERY_S))


def apply_report(
    spec: TrainingJobSpec, status: TrainingJobStatus, batch: WorkerReport, received: datetime
) -> TrainingJobStatus:
    """The status with what the batch tells; the same when it tells nothing new."""
    if batch.attempt != status.restart_count or batch.index != REPORTING_WORKER:
        return status
    status = structs.replace(status, checkpoint=checkpoints.apply_checkpoints(spec, status.checkpoint, batch, received))
    if not batch.progress and batch.resumed is None:
        return status
    status = _begin(spec, status, batch, received)
    start, end = _mark(_epochs(status)), None
    for entry in batch.progress:
        if _epochs(status).goal is not None:
            break  # the job ends with this epoch; what was trained beyond it does not count
        if _is_new(entry, _epochs(status)):
            status = _advance(spec, status, entry, received)
            end = ProgressMark(_epochs(status).position, received - timedelta(seconds=batch.age_s(entry)))
            start = start or end
    return status if start is None or end is None else _with_percent(_with_pace(status, start, end), end.at)


def total_epochs(spec: TrainingJobSpec, status: TrainingJobStatus) -> int | None:
    """What the training itself has told in this attempt, else what the spec says."""
    told = status.epochs is not None and status.epochs.attempt == status.restart_count and status.total_epochs
    return told or (spec.hyperparameters.epochs if spec.hyperparameters else None)


def _begin(
    spec: TrainingJobSpec, status: TrainingJobStatus, batch: WorkerReport, received: datetime
) -> TrainingJobStatus:
    """A new attempt stands where it resumed, and keeps what was learned about the pace and the best epoch."""
    old, from_epoch = status.epochs or EpochProgress(), batch.resumed.epoch if batch.resumed else 0
    if status.epochs is None or old.attempt != batch.attempt:
        status = structs.replace(status, total_epochs=total_epochs(spec, status))
        if batch.resumed is None and status.checkpoint is not None:
            status = structs.replace(status, checkpoint=structs.replace(status.checkpoint, resumed_from=None))
        new = structs.replace(
            old, attempt=batch.attempt, done=from_epoch, position=float(from_epoch), position_time=None
        )
        return _with_percent(structs.replace(status, epochs=new, current_epoch=from_epoch), received)
    if batch.sequence == 1:  # the time since the last word was not spent on training alone
        old = structs.replace(old, position_time=None)
    new = structs.replace(old, done=max(old.done, from_epoch), position=max(old.position, float(from_epoch)))
    return structs.replace(status, epochs=new)


def _is_new(entry: Progress, epochs: EpochProgress) -> bool:
    """The end of an epoch may be told in several lines; a step that is behind was told before."""
    return entry.epoch >= epochs.done if entry.step is None else entry.position >= epochs.position


def _advance(
    spec: TrainingJobSpec, status: TrainingJobStatus, entry: Progress, received: datetime
) -> TrainingJobStatus:
    epochs = _epochs(status)
    epochs = structs.replace(epochs, position=max(epochs.position, entry.position))
    if entry.step is None:
        epochs = structs.replace(epochs, done=entry.epoch)
        epochs = success.update_goal(spec.success_policy, epochs, entry, received)
    return structs.replace(
        status,
        epochs=epochs,
        current_epoch=max(status.current_epoch or 0, entry.epoch),
        total_epochs=entry.total_epochs or total_epochs(spec, status),
        metrics=_merged(status.metrics, _without_gpus(entry.metrics)),
    )


def _merged(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """What is told now comes first where there is not room for all."""
    kept = [name for name in old if name not in new][: MOST_METRICS - len(new)]
    return {**{name: old[name] for name in kept}, **new}


def with_gpu_utilization(status: TrainingJobStatus, percent: float | None) -> TrainingJobStatus:
    """With the mean over the workers, for which the value in worker 0's progress is no substitute."""
    metrics = _without_gpus(status.metrics)
    if percent is not None and len(metrics) < MOST_METRICS:
        metrics[GPU_UTILIZATION] = percent
    return structs.replace(status, metrics=metrics)


def _without_gpus(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != GPU_UTILIZATION}


def _mark(epochs: EpochProgress) -> ProgressMark | None:
    return ProgressMark(epochs.position, parse_time(epochs.position_time)) if epochs.position_time else None


def _with_pace(status: TrainingJobStatus, start: ProgressMark, end: ProgressMark) -> TrainingJobStatus:
    """With the pace from one word to the next, of which earlier ones have their share."""
    epochs = _epochs(status)
    gone, passed_s = end.position - start.position, (end.at - start.at).total_seconds()
    if gone <= 0:  # where steps are not counted, time passes and the position stays
        return structs.replace(status, epochs=structs.replace(epochs, position_time=_precise(start.at)))
    pace_s = epochs.seconds_each if passed_s <= 0 else _blended(epochs.seconds_each, passed_s / gone, gone, status)
    new = structs.replace(epochs, position_time=_precise(end.at), seconds_each=pace_s)
    return structs.replace(status, epochs=new)


def _blended(old_s: float | None, lately_s: float, gone: float, status: TrainingJobStatus) -> float:
    if old_s is None:
        return round(lately_s, 6)
    window = min(PACE_EPOCHS, status.total_epochs / 10) if status.total_epochs else PACE_EPOCHS
    share: float = 0.5 ** (gone / window)
    return round(share * old_s + (1 - share) * lately_s, 6)


def _with_percent(status: TrainingJobStatus, at: datetime) -> TrainingJobStatus:
    total, position = status.total_epochs, _epochs(status).position
    if not total:
        return status
    return structs.replace(
        status, progress=percent(position, total), estimated_completion_time=_end(status, total - position, at)
    )


def percent(position: float, total: int) -> str:
    """Rounded down: 100% only when all is done."""
    return f"{min(100, int(round(100 * position / total, 6)))}%"


def _end(status: TrainingJobStatus, left: float, at: datetime) -> str | None:
    pace_s = _epochs(status).seconds_each
    if pace_s is None:
        return None
    left_s = max(0.0, left) * pace_s
    return format_time(at + timedelta(seconds=left_s)) if left_s < FORESEEABLE_S else None


def _epochs(status: TrainingJobStatus) -> EpochProgress:
    assert status.epochs is not None
    return status.epochs


def _precise(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# What worker 0's sidecar left in its termination message: what it could not report before it ended.

_CHECKPOINT = re.compile(r"[^\x00-\x1f\x7f]*/checkpoint-epoch-(0*[0-9]{1,9})")


def termination_report(observed: Observed) -> WorkerReport | None:
    """As a report; None when there is nothing in it that the status does not tell already."""
    pod = next((pod for pod in observed.pods if index_of(pod) == REPORTING_WORKER and pod.is_finished), None)
    word = _read(pod) if pod is not None else None
    if word is None or word.attempt != observed.status.restart_count:
        return None
    progress = word.progress if _is_further(word, observed.status.epochs) else None
    checkpoint = _newer(observed, word)
    if progress is None and checkpoint is None:
        return None
    return WorkerReport(
        job=observed.job.metadata.name,
        namespace=observed.job.metadata.namespace,
        uid=observed.job.metadata.uid,
        attempt=word.attempt,
        index=REPORTING_WORKER,
        run="last word",
        sequence=2,
        sent_at=_at(word),
        progress=(progress,) if progress is not None else (),
        checkpoints=(checkpoint,) if checkpoint is not None else (),
    )


def _read(pod: Pod) -> TerminationReport | None:
    ends = (each.state.terminated for each in pod.status.init_container_statuses if each.name == SIDECAR)
    end = next(ends, None)
    try:
        return msgspec.json.decode(end.message, type=TerminationReport) if end is not None and end.message else None
    except (msgspec.MsgspecError, RecursionError):
        return None  # the last lines of its log, where it died before it could say anything


def _is_further(word: TerminationReport, epochs: EpochProgress | None) -> bool:
    if word.progress is None:
        return False
    told = epochs.position if epochs is not None and epochs.attempt == word.attempt else -1.0
    return word.progress.position > told


def _newer(observed: Observed, word: TerminationReport) -> Checkpoint | None:
    match = _CHECKPOINT.fullmatch(word.checkpoint)
    known = observed.status.checkpoint or CheckpointStatus()
    if match is None:
        return None
    epoch = word.checkpoint_epoch if word.checkpoint_epoch is not None else int(match[1])
    last_epoch = -1 if known.last_epoch is None else known.last_epoch
    if epoch < last_epoch or (epoch, word.checkpoint) == (last_epoch, known.last):
        return None
    return Checkpoint(path=word.checkpoint, epoch=epoch, outcome=durable_outcome(observed.job.spec), at=_at(word))


def _at(word: TerminationReport) -> float:
    """All of it is as old as its progress, which is the last that was told."""
    return word.progress.at if word.progress is not None else 0.0
