"""Checkpoints: which are asked for, what has become of them, and when the next one is due. Pure.

A checkpoint is in status, with its number, before its CheckpointBackup is made. It leaves status when it has ended.
"""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup
from holdfast.api.meta import Condition, merge_conditions
from holdfast.api.spotinstancejob_status import (
    MOST_CHECKPOINT_COSTS,
    CheckpointInProgress,
    CheckpointReason,
    RecoverySource,
    ReplicaStatus,
    SpotInstanceJobStatus,
)
from holdfast.decisions import MAX_MESSAGE
from holdfast.spotinstancejob.decide.replicas import is_running, started_at
from holdfast.spotinstancejob.images import CheckpointImages, checkpoint_of, number_of_image, status_image
from holdfast.spotinstancejob.interval import (
    checkpoint_interval_s,
    is_saved_on_notice,
    mean_lifetime_s,
    next_checkpoint_time,
    offset_s,
)
from holdfast.spotinstancejob.snapshot import (
    SpotInstanceJobSnapshot,
    SpotInstanceJobTiming,
    after,
    condition_of,
    notice_s,
    replica_of,
    with_replica,
)
from holdfast.times import format_time, parse_time

# Reasons of a CheckpointBackup's conditions for which nothing will come of it, though its time is not over.
HOPELESS = ("NoAgent", "NodeNotReady")
# Two replicas are not frozen at once; one that takes longer does not keep the other from being saved.
APART_S = 120.0


# Asking for one.


def ask_for_checkpoint(
    status: SpotInstanceJobStatus, replica: ReplicaStatus, job_name: str, reason: CheckpointReason, now: datetime
) -> tuple[SpotInstanceJobStatus, int]:
    """The status with a checkpoint of the attempt that runs as `job_name`, and its number.

    Of an attempt one checkpoint is under way at a time: a second wish for it is content with that one.
    """
    for under_way in status.checkpoints_in_progress:
        if under_way.job == job_name:
            wanted = structs.replace(under_way, reason=reason if under_way.reason == "Interval" else under_way.reason)
            return _with_progress(status, wanted), under_way.number
    number, time = status.checkpoint_number + 1, format_time(now)
    new = CheckpointInProgress(number=number, replica=replica.replica, job=job_name, reason=reason, time=time)
    status = structs.replace(
        status, checkpoint_number=number, checkpoints_in_progress=(*status.checkpoints_in_progress, new)
    )
    current = replica_of(status, replica.replica)
    if current is not None:
        status = with_replica(status, structs.replace(current, checkpoint_number=number, checkpoint_time=time))
    return status, number


def timeout_s(observed: SpotInstanceJobSnapshot, wanted: CheckpointInProgress, timing: SpotInstanceJobTiming) -> int:
    match wanted.reason:
        case "Recovery":
            return timing.recovery_checkpoint_s
        case "Notice":
            return max(10, int(notice_s(observed.template)))
    return timing.checkpoint_s


def _with_progress(status: SpotInstanceJobStatus, wanted: CheckpointInProgress) -> SpotInstanceJobStatus:
    in_progress = (wanted if each.number == wanted.number else each for each in status.checkpoints_in_progress)
    return structs.replace(status, checkpoints_in_progress=tuple(in_progress))


# What has become of those that were asked for.


class CheckpointFailure(Struct, frozen=True):
    message: str


def note_results(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime, timing: SpotInstanceJobTiming
) -> SpotInstanceJobStatus:
    """The status with what the ended ones have brought: an image to go on from, or a reason why there is none."""
    for wanted in status.checkpoints_in_progress:
        match _result(observed, wanted, now, timing):
            case CheckpointImages() as checkpoint:
                status = _succeeded(observed, _without(status, wanted), wanted, checkpoint, now)
            case CheckpointFailure(message):
                status = _failed(observed, _without(status, wanted), wanted, message, now)
            case None if now >= after(wanted.time, timing.saves_nothing_s):
                status = _saves_nothing(observed, status, wanted, now)
    return status


def _result(
    observed: SpotInstanceJobSnapshot, wanted: CheckpointInProgress, now: datetime, timing: SpotInstanceJobTiming
) -> CheckpointImages | CheckpointFailure | None:
    backup, pod = observed.backup(wanted.replica, wanted.number), observed.pod_of(wanted.job)
    deadline = after(wanted.time, timeout_s(observed, wanted, timing) + timing.late_s)
    # The run would wait for another pod of that name, and an attempt has only one.
    if not _has_begun(backup) and (pod is None or pod.is_finished or pod.is_terminating):
        return CheckpointFailure("its pod was gone before it could be saved")
    if backup is None:
        return CheckpointFailure("its CheckpointBackup was deleted, or could not be made") if now >= deadline else None
    checkpoint = checkpoint_of(observed.job, backup)
    if checkpoint is not None:
        return checkpoint
    status, said = backup.status, _said_of(backup)
    if status is not None and (status.phase in TERMINAL_PHASES or said[0] in HOPELESS):
        return CheckpointFailure(said[1] or "its CheckpointBackup says no more")
    return CheckpointFailure(f"nothing came of it in time; {said[1]}".removesuffix("; ")) if now >= deadline else None


def _has_begun(backup: CheckpointBackup | None) -> bool:
    """What a run has frozen is pushed, though the pod may be gone meanwhile; one that has failed says why."""
    return backup is not None and backup.status is not None and (backup.status.run > 0 or bool(backup.status.phase))


def _said_of(backup: CheckpointBackup) -> tuple[str, str]:
    """The reason and the message of a run."""
    status = backup.status
    if status is None:
        return "", "nobody has begun it"
    failed = next((each for each in status.conditions if each.type == "Failed"), None)
    return (failed.reason if failed is not None else ""), status.message or ""


def _without(status: SpotInstanceJobStatus, ended: CheckpointInProgress) -> SpotInstanceJobStatus:
    left = tuple(each for each in status.checkpoints_in_progress if each.number != ended.number)
    return structs.replace(status, checkpoints_in_progress=left)


def _succeeded(
    observed: SpotInstanceJobSnapshot,
    status: SpotInstanceJobStatus,
    wanted: CheckpointInProgress,
    checkpoint: CheckpointImages,
    now: datetime,
) -> SpotInstanceJobStatus:
    image, taken = status_image(observed.job, checkpoint), checkpoint.taken_at or wanted.time
    backup = observed.backup(wanted.replica, wanted.number)
    done = backup.status.completion_time if backup is not None and backup.status is not None else None
    replica = replica_of(status, wanted.replica)
    if replica is not None:
        seconds = max(0.0, (parse_time(done or format_time(now)) - parse_time(wanted.time)).total_seconds())
        status = with_replica(
            status,
            structs.replace(
                replica,
                last_checkpoint_image=image,
                last_checkpoint_time=taken,
                last_checkpoint_seconds=int(seconds),
            ),
        )
    # By their numbers: the clocks of nodes need not agree.
    if wanted.number >= number_of_image(status.last_checkpoint_image or ""):
        status = structs.replace(status, last_checkpoint_image=image, last_checkpoint_time=taken)
    cost_s = _cost_s(backup)
    if cost_s is not None:
        costs = (*status.checkpoint_costs, cost_s)[-MOST_CHECKPOINT_COSTS:]
        status = structs.replace(status, checkpoint_costs=costs)
    for each in status.job_statuses:
        if each.awaited_checkpoint == wanted.number and each.source is None:
            source: RecoverySource = "survivor" if wanted.replica != each.replica else "repository"
            status = with_replica(
                status, structs.replace(each, awaited_checkpoint=0, source=source, restored_from=image)
            )
    return _with_condition(observed, status, "True", "Saved", f"replica {wanted.replica} was saved as {image}", now)


def _cost_s(backup: CheckpointBackup | None) -> float | None:
    """How long the training stood still: frozen by the runtime, or busy with saving."""
    status = backup.status if backup is not None else None
    if status is None:
        return None
    if status.frozen_seconds is not None:
        return round(status.frozen_seconds, 3)
    if status.mode != "application" or not status.start_time or not status.last_checkpoint_time:
        return None
    return max(0.0, (parse_time(status.last_checkpoint_time) - parse_time(status.start_time)).total_seconds())


def _failed(
    observed: SpotInstanceJobSnapshot,
    status: SpotInstanceJobStatus,
    wanted: CheckpointInProgress,
    why: str,
    now: datetime,
) -> SpotInstanceJobStatus:
    for each in status.job_statuses:
        if each.awaited_checkpoint == wanted.number:
            status = with_replica(status, structs.replace(each, awaited_checkpoint=0))
    has_image = status.last_checkpoint_image is not None
    text = f"checkpoint {wanted.number} of replica {wanted.replica} failed: {why}{_advice(observed, status)}"
    return _with_condition(observed, status, "True" if has_image else "False", "CheckpointFailed", text, now)


def _saves_nothing(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, wanted: CheckpointInProgress, now: datetime
) -> SpotInstanceJobStatus:
    """A program that never saves lets its first checkpoint wait until the deadline: why is said long before."""
    backup, advice = observed.backup(wanted.replica, wanted.number), _advice(observed, status)
    said = condition_of(status, "Checkpointed")
    if not advice or backup is None or backup.status is None or backup.status.phase != "Checkpointing":
        return status
    if said is not None and said.reason != "NothingSaved":
        return status
    text = f"replica {wanted.replica} was asked to save at {wanted.time}, and nothing is saved yet"
    why = f": {backup.status.message}" if backup.status.message else ""
    return _with_condition(observed, status, "False", "NothingSaved", f"{text}{why}{advice}", now)


def _advice(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> str:
    if status.checkpoint_mode != "application" or status.last_checkpoint_image is not None:
        return ""
    return (
        "; in mode application the program has to save into CHECKPOINT_DIR by itself: have it do so, or create a new "
        "job with mode: container"
    )


def _with_condition(
    observed: SpotInstanceJobSnapshot,
    status: SpotInstanceJobStatus,
    value: str,
    reason: str,
    message: str,
    now: datetime,
) -> SpotInstanceJobStatus:
    condition = Condition(
        type="Checkpointed",
        status=value,
        reason=reason,
        message=message[:MAX_MESSAGE],
        last_transition_time=format_time(now),
        observed_generation=observed.job.metadata.generation,
    )
    return structs.replace(status, conditions=merge_conditions(status.conditions, [condition]))


# When the next one is due.


def ask_for_due(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime
) -> SpotInstanceJobStatus:
    """At most one periodic checkpoint is begun at a time: replicas take turns."""
    interval_s = _interval_s(observed, status)
    status = structs.replace(status, checkpoint_interval_seconds=interval_s)
    for due, replica in sorted(
        _due_times(observed, status, interval_s, now), key=lambda each: (each[0], each[1].replica)
    ):
        if due <= now and not _is_somebody_frozen(observed, status, now):
            status, _ = ask_for_checkpoint(status, replica, replica.name, "Interval", now)
    following = min((due for due, _ in _due_times(observed, status, interval_s, now)), default=None)
    return structs.replace(status, next_checkpoint_time=format_time(following) if following is not None else None)


def _interval_s(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> int:
    lifetimes = observed.template.status.lifetimes if observed.template is not None and observed.template.status else ()
    lifetime_s = mean_lifetime_s(sum(each.preemptions for each in lifetimes), sum(each.seconds for each in lifetimes))
    taken = [each.last_checkpoint_seconds for each in status.job_statuses if each.last_checkpoint_image is not None]
    return checkpoint_interval_s(
        observed.job.spec.checkpoint_config.checkpoint_interval,
        costs_s=status.checkpoint_costs,
        lifetime_s=lifetime_s,
        saves_on_notice=is_saved_on_notice(max(taken, default=None), notice_s(observed.template)),
        current_s=status.checkpoint_interval_seconds,
    )


def _due_times(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, interval_s: int, now: datetime
) -> Iterator[tuple[datetime, ReplicaStatus]]:
    """For each replica that can be saved when it is to be; from its last request on, also one that has failed."""
    if status.start_time is None:
        return
    began = parse_time(status.start_time)
    busy = {each.job for each in status.checkpoints_in_progress}
    for replica in status.job_statuses:
        started = started_at(observed, replica)
        if not is_running(observed, replica) or replica.name in busy or observed.is_announced(replica.node_name or ""):
            continue
        moments = (parse_time(started), parse_time(replica.checkpoint_time or started))
        # What is still to come was told by a clock that was ahead.
        last = max((each for each in moments if each <= now), default=now - timedelta(seconds=interval_s))
        offset = math.ceil(offset_s(replica.replica, len(status.job_statuses), interval_s))
        yield next_checkpoint_time(began, last, offset=offset, interval_s=interval_s), replica


def _is_somebody_frozen(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime) -> bool:
    for wanted in status.checkpoints_in_progress:
        backup = observed.backup(wanted.replica, wanted.number)
        phase = backup.status.phase if backup is not None and backup.status is not None else None
        is_recent = now < parse_time(wanted.time) + timedelta(seconds=APART_S)
        if phase in (None, "Checkpointing") and is_recent:
            return True
    return False


def checkpoints_ahead(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, timing: SpotInstanceJobTiming
) -> Iterator[datetime]:
    """When a checkpoint is due or late though nothing else happens."""
    if status.next_checkpoint_time:
        yield parse_time(status.next_checkpoint_time)
    for wanted in status.checkpoints_in_progress:
        yield after(wanted.time, timeout_s(observed, wanted, timing) + timing.late_s)
        yield after(wanted.time, APART_S)
        yield after(wanted.time, timing.saves_nothing_s)
