"""Writes the progress that worker 0's sidecar reports into the status; within an attempt, progress never goes back.

The status holds everything that the next report is compared with, so that a restarted operator continues from there.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from holdfast.api.core.objects import Pod
from holdfast.api.reports import MOST_METRICS, CheckpointReport, ProgressReport, TerminationReport, WorkerReport
from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.api.trainingjob_blocks import SuccessPolicy
from holdfast.api.trainingjob_status import CheckpointStatus, EpochProgress, TrainingJobStatus
from holdfast.pods.failure import index_of
from holdfast.pods.template import SIDECAR_CONTAINER
from holdfast.times import format_micro_time, format_time, parse_time
from holdfast.train.progress import METRIC as GPU_UTILIZATION
from holdfast.trainingjob.decide import checkpoints
from holdfast.trainingjob.decide.checkpoints import checkpoints_enabled, durable_outcome
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot, TrainingJobTiming

# Worker 0 reports for all workers: the others train the same epochs.
REPORTING_WORKER = 0
WRITE_EVERY_S = 5.0
# The pace is measured over the last few epochs, or over a tenth of a training with only a few epochs.
PACE_EPOCHS = 3.0
FORESEEABLE_S = 10 * 365 * 86400.0


class ProgressMark(NamedTuple):
    """The position of a training at a point in time."""

    position: float
    at: datetime


def next_write_at(last_write: datetime | None, now: datetime) -> datetime:
    """When progress may be written next: not before `now`, and rarely enough for an API server with many jobs."""
    if last_write is None or last_write > now:  # a clock that was set back must not delay the next write
        return now
    return max(now, last_write + timedelta(seconds=WRITE_EVERY_S))


def apply_report(
    spec: TrainingJobSpec, status: TrainingJobStatus, batch: WorkerReport, received: datetime
) -> TrainingJobStatus:
    """The status with the content of the report; unchanged when the report has nothing new."""
    if batch.attempt != status.restart_count or batch.index != REPORTING_WORKER:
        return status
    status = structs.replace(status, checkpoint=checkpoints.apply_checkpoints(spec, status.checkpoint, batch, received))
    if not batch.progress and batch.resumed is None:
        return status
    status = _begin_attempt(spec, status, batch, received)
    start, end = _last_mark(_epochs(status)), None
    for entry in batch.progress:
        if _epochs(status).goal is not None:
            break  # the job ends with this epoch; later progress does not count
        if _is_new(entry, _epochs(status)):
            status = _advance(spec, status, entry, received)
            end = ProgressMark(_epochs(status).position, received - timedelta(seconds=batch.age_s(entry)))
            start = start or end
    return status if start is None or end is None else _with_percent(_with_pace(status, start, end), end.at)


def total_epochs(spec: TrainingJobSpec, status: TrainingJobStatus) -> int | None:
    """The number that the training itself reports in this attempt, else the number in the spec."""
    reported = status.epochs is not None and status.epochs.attempt == status.restart_count and status.total_epochs
    return reported or (spec.hyperparameters.epochs if spec.hyperparameters else None)


def _begin_attempt(
    spec: TrainingJobSpec, status: TrainingJobStatus, batch: WorkerReport, received: datetime
) -> TrainingJobStatus:
    """A new attempt starts at the epoch it resumes from, and retains the measured pace and the best epoch."""
    old, from_epoch = status.epochs or EpochProgress(), batch.resumed.epoch if batch.resumed else 0
    if status.epochs is None or old.attempt != batch.attempt:
        status = structs.replace(status, total_epochs=total_epochs(spec, status))
        if batch.resumed is None and status.checkpoint is not None:
            status = structs.replace(status, checkpoint=structs.replace(status.checkpoint, resumed_from=None))
        new = structs.replace(
            old, attempt=batch.attempt, done=from_epoch, position=float(from_epoch), position_time=None
        )
        return _with_percent(structs.replace(status, epochs=new, current_epoch=from_epoch), received)
    if batch.sequence == 1:  # the sidecar restarted: the time since its last report was not all training
        old = structs.replace(old, position_time=None)
    new = structs.replace(old, done=max(old.done, from_epoch), position=max(old.position, float(from_epoch)))
    return structs.replace(status, epochs=new)


def _is_new(entry: ProgressReport, epochs: EpochProgress) -> bool:
    """Several entries may report the end of one epoch; a step behind the known position was reported before."""
    return entry.epoch >= epochs.done if entry.step is None else entry.position >= epochs.position


def _advance(
    spec: TrainingJobSpec, status: TrainingJobStatus, entry: ProgressReport, received: datetime
) -> TrainingJobStatus:
    epochs = _epochs(status)
    epochs = structs.replace(epochs, position=max(epochs.position, entry.position))
    if entry.step is None:
        epochs = structs.replace(epochs, done=entry.epoch)
        epochs = update_goal(spec.success_policy, epochs, entry, received)
    return structs.replace(
        status,
        epochs=epochs,
        current_epoch=max(status.current_epoch or 0, entry.epoch),
        total_epochs=entry.total_epochs or total_epochs(spec, status),
        metrics=_merge_metrics(status.metrics, _without_gpu_utilization(entry.metrics)),
    )


def _merge_metrics(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """New metrics take precedence over old ones when the limit is reached."""
    retained = [name for name in old if name not in new][: MOST_METRICS - len(new)]
    return {**{name: old[name] for name in retained}, **new}


def with_gpu_utilization(status: TrainingJobStatus, percent: float | None) -> TrainingJobStatus:
    """Sets the mean over all workers; the value in worker 0's progress is no substitute for the mean."""
    metrics = _without_gpu_utilization(status.metrics)
    if percent is not None and len(metrics) < MOST_METRICS:
        metrics[GPU_UTILIZATION] = percent
    return structs.replace(status, metrics=metrics)


def _without_gpu_utilization(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != GPU_UTILIZATION}


def _last_mark(epochs: EpochProgress) -> ProgressMark | None:
    return ProgressMark(epochs.position, parse_time(epochs.position_time)) if epochs.position_time else None


def _with_pace(status: TrainingJobStatus, start: ProgressMark, end: ProgressMark) -> TrainingJobStatus:
    """Updates the pace: the pace between two reports, blended with the earlier pace."""
    epochs = _epochs(status)
    advanced, elapsed_s = end.position - start.position, (end.at - start.at).total_seconds()
    if advanced <= 0:  # without step reports, time passes while the position stays the same
        return structs.replace(status, epochs=structs.replace(epochs, position_time=format_micro_time(start.at)))
    pace_s = (
        epochs.seconds_each
        if elapsed_s <= 0
        else _blend_pace(epochs.seconds_each, elapsed_s / advanced, advanced, status)
    )
    new = structs.replace(epochs, position_time=format_micro_time(end.at), seconds_each=pace_s)
    return structs.replace(status, epochs=new)


def _blend_pace(old_s: float | None, recent_s: float, advanced: float, status: TrainingJobStatus) -> float:
    if old_s is None:
        return round(recent_s, 6)
    window = min(PACE_EPOCHS, status.total_epochs / 10) if status.total_epochs else PACE_EPOCHS
    weight: float = 0.5 ** (advanced / window)
    return round(weight * old_s + (1 - weight) * recent_s, 6)


def _with_percent(status: TrainingJobStatus, at: datetime) -> TrainingJobStatus:
    total, position = status.total_epochs, _epochs(status).position
    if not total:
        return status
    return structs.replace(
        status,
        progress=percent(position, total),
        estimated_completion_time=_estimated_end(status, total - position, at),
    )


def percent(position: float, total: int) -> str:
    """Rounded down: 100% only when all epochs are done."""
    return f"{min(100, int(round(100 * position / total, 6)))}%"


def _estimated_end(status: TrainingJobStatus, left: float, at: datetime) -> str | None:
    pace_s = _epochs(status).seconds_each
    if pace_s is None:
        return None
    left_s = max(0.0, left) * pace_s
    return format_time(at + timedelta(seconds=left_s)) if left_s < FORESEEABLE_S else None


def _epochs(status: TrainingJobStatus) -> EpochProgress:
    assert status.epochs is not None
    return status.epochs


# The termination message of worker 0's sidecar holds what the sidecar could not report before it ended.

_CHECKPOINT = re.compile(r"[^\x00-\x1f\x7f]*/checkpoint-epoch-(0*[0-9]{1,9})")


def termination_report(observed: TrainingJobSnapshot) -> WorkerReport | None:
    """The termination message as a report; None when it adds nothing to the status."""
    pod = next((pod for pod in observed.pods if index_of(pod) == REPORTING_WORKER and pod.is_finished), None)
    report = _read_termination_report(pod) if pod is not None else None
    if report is None or report.attempt != observed.status.restart_count:
        return None
    progress = report.progress if _is_further(report, observed.status.epochs) else None
    checkpoint = _newer_checkpoint(observed, report)
    if progress is None and checkpoint is None:
        return None
    return WorkerReport(
        job=observed.job.metadata.name,
        namespace=observed.job.metadata.namespace,
        uid=observed.job.metadata.uid,
        attempt=report.attempt,
        index=REPORTING_WORKER,
        run="last word",
        sequence=2,
        sent_at=_reported_at(report),
        progress=(progress,) if progress is not None else (),
        checkpoints=(checkpoint,) if checkpoint is not None else (),
    )


def _read_termination_report(pod: Pod) -> TerminationReport | None:
    terminations = (
        each.state.terminated for each in pod.status.init_container_statuses if each.name == SIDECAR_CONTAINER
    )
    termination = next(terminations, None)
    try:
        return (
            msgspec.json.decode(termination.message, type=TerminationReport)
            if termination is not None and termination.message
            else None
        )
    except (msgspec.MsgspecError, RecursionError):
        return None  # the message is the end of the log when the sidecar died before it wrote a report


def _is_further(report: TerminationReport, epochs: EpochProgress | None) -> bool:
    if report.progress is None:
        return False
    known_position = epochs.position if epochs is not None and epochs.attempt == report.attempt else -1.0
    return report.progress.position > known_position


def _newer_checkpoint(observed: TrainingJobSnapshot, report: TerminationReport) -> CheckpointReport | None:
    match = _CHECKPOINT.fullmatch(report.checkpoint)
    known = observed.status.checkpoint or CheckpointStatus()
    if match is None:
        return None
    epoch = report.checkpoint_epoch if report.checkpoint_epoch is not None else int(match[1])
    last_epoch = -1 if known.last_epoch is None else known.last_epoch
    if epoch < last_epoch or (epoch, report.checkpoint) == (last_epoch, known.last):
        return None
    return CheckpointReport(
        path=report.checkpoint, epoch=epoch, outcome=durable_outcome(observed.job.spec), at=_reported_at(report)
    )


def _reported_at(report: TerminationReport) -> float:
    """The time of its progress, which is the last reported; it stands for the whole report."""
    return report.progress.at if report.progress is not None else 0.0


# successPolicy is evaluated at the end of every epoch; the result is stored in the status with the epoch itself. It
# refers to the metrics `accuracy` and `loss`.


class SuccessResult(Struct, frozen=True):
    """Why the job is Completed: a one-word reason and a message."""

    reason: str
    message: str


def update_goal(
    policy: SuccessPolicy | None, epochs: EpochProgress, ended: ProgressReport, now: datetime
) -> EpochProgress:
    """Records the best loss so far, and whether this epoch is the last.

    Epochs are compared by number: an epoch that is trained again after a restart counts once.
    """
    loss, accuracy = ended.metrics.get("loss"), ended.metrics.get("accuracy")
    if loss is not None and (epochs.best_loss is None or loss < epochs.best_loss):
        epochs = structs.replace(epochs, best_loss=loss, best_epoch=ended.epoch)
    if policy is None:
        return epochs
    target, patience = policy.target_accuracy, policy.early_stopping_patience
    if target is not None and accuracy is not None and accuracy >= target:
        return structs.replace(epochs, goal="TargetReached", goal_time=format_time(now))
    since_best = ended.epoch - epochs.best_epoch if epochs.best_epoch is not None else 0
    if patience is not None and loss is not None and since_best >= patience:
        return structs.replace(epochs, goal="EarlyStopped", goal_time=format_time(now))
    return epochs


def success_if_reached(
    job: TrainingJob, now: datetime, timing: TrainingJobTiming, *, is_ending: bool = False
) -> SuccessResult | None:
    """The result once the goal is reached and the model is saved, or can't be saved: `is_ending`, or the time is up."""
    epochs = job.status.epochs if job.status is not None else None
    if epochs is None or epochs.goal is None:
        return None
    due = final_save_deadline(job, timing)
    return _success_result(job, epochs) if is_ending or due is None or now >= due else None


def final_save_deadline(job: TrainingJob, timing: TrainingJobTiming) -> datetime | None:
    """Until when the job waits for a final checkpoint; None when there is nothing to wait for."""
    status = job.status
    epochs = status.epochs if status is not None else None
    if status is None or epochs is None or epochs.goal_time is None or not checkpoints_enabled(job.spec):
        return None
    saved = status.checkpoint.last_epoch if status.checkpoint is not None else None
    # Workers report before the status shows that all of them run.
    has_workers = status.state in ("Initializing", "Running", "Restarting")
    can_save = has_workers and epochs.attempt == status.restart_count
    if not can_save or (saved is not None and saved >= epochs.done):
        return None
    return parse_time(epochs.goal_time) + timedelta(seconds=timing.final_save_s)


def _success_result(job: TrainingJob, epochs: EpochProgress) -> SuccessResult:
    policy = job.spec.success_policy or SuccessPolicy()
    if epochs.goal == "TargetReached":
        target = "" if policy.target_accuracy is None else f" {policy.target_accuracy:g}"
        message = f"the accuracy reached successPolicy.targetAccuracy{target} in epoch {epochs.done}"
    else:
        message = (
            f"no better loss than {epochs.best_loss:.4g} of epoch {epochs.best_epoch} came until epoch {epochs.done} "
            "(successPolicy.earlyStoppingPatience)"
        )
    return SuccessResult(str(epochs.goal), message)
