"""Evaluates successPolicy at the end of every epoch; the result is stored in the status with the epoch itself.

successPolicy refers to the metrics `accuracy` and `loss`.
"""

from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.reports import Progress
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import SuccessPolicy
from holdfast.api.trainingjob_status import EpochProgress
from holdfast.times import format_time, parse_time
from holdfast.trainingjob.decide.checkpoints import checkpoints_enabled
from holdfast.trainingjob.decide.snapshot import Timing


class SuccessResult(Struct, frozen=True):
    """Why the job is Completed: a one-word reason and a message."""

    reason: str
    message: str


def update_goal(policy: SuccessPolicy | None, epochs: EpochProgress, ended: Progress, now: datetime) -> EpochProgress:
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
    job: TrainingJob, now: datetime, timing: Timing, *, is_ending: bool = False
) -> SuccessResult | None:
    """The result once the goal is reached and the model is saved, or can't be saved: `is_ending`, or the time is up."""
    epochs = job.status.epochs if job.status is not None else None
    if epochs is None or epochs.goal is None:
        return None
    due = final_save_deadline(job, timing)
    return _success_result(job, epochs) if is_ending or due is None or now >= due else None


def final_save_deadline(job: TrainingJob, timing: Timing) -> datetime | None:
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
