"""The status of a CheckpointBackup, from the observation and the chosen action. Pure."""

from datetime import datetime

from msgspec import structs

from holdfast.api.checkpointbackup import (
    TERMINAL_PHASES,
    BuiltImage,
    CheckpointBackupStatus,
    Phase,
    run_conditions,
)
from holdfast.api.meta import Condition, merge_conditions
from holdfast.checkpointbackup.actions import (
    Action,
    AdvanceRun,
    BeginRun,
    DeletePod,
    EndRun,
    EndSchedule,
    Explanation,
    FailDueRun,
    FollowRun,
    HoldRun,
    Idle,
)
from holdfast.checkpointbackup.due import DueRuns
from holdfast.checkpointbackup.snapshot import POD_DELETED, SCHEDULED, CheckpointBackupSnapshot, condition_of
from holdfast.decisions import MAX_MESSAGE
from holdfast.times import format_time, parse_optional_time

ON_SCHEDULE = Explanation("OnSchedule", "runs follow spec.schedule")


def next_status(observed: CheckpointBackupSnapshot, action: Action, now: datetime) -> CheckpointBackupStatus:
    """The status that the backup should show; equal to its present status when nothing has changed."""
    old = observed.status
    match action:
        case Idle(due):
            status = _scheduled(observed, _without_obstacle(observed, now), due, ON_SCHEDULE, now)
        case HoldRun(due, why):
            status = structs.replace(old, message=why.message) if old.run else _with_run(old, observed, None, why, now)
            status = _scheduled(observed, status, due, why, now, holds=not observed.backup.spec.suspend)
        case BeginRun():
            status = _begun(observed, action, now)
        case FailDueRun(due, following, why):
            missed = old.missed_runs + due.missed
            unbegun = structs.replace(old, missed_runs=missed, node_name="", pod_uid="", mode=None, mode_reason="")
            status = _with_run(unbegun, observed, "Failed", why, now, started=True)
            status = _scheduled(observed, status, DueRuns(next=following), ON_SCHEDULE, now)
        case EndSchedule(why):
            status = _ended(observed, why, now)
        case FollowRun(due, why):
            counted = structs.replace(old, missed_runs=old.missed_runs + due.missed, next_checkpoint_time=_time(due))
            status = counted if why is None else _with_run(counted, observed, old.phase, why, now)
        case AdvanceRun():
            status = _advanced(observed, action, now)
        case EndRun(phase, why):
            status = _with_run(old, observed, phase, why, now)
        case DeletePod():
            why = Explanation(POD_DELETED, f"run {old.run} is pushed, and pod {observed.pod_name} is deleted")
            status = _with_run(old, observed, "CompletedPodDeleted", why, now)
            status = _scheduled(observed, status, DueRuns(), why, now, holds=False)
        case _:
            return old
    return structs.replace(status, observed_generation=observed.backup.metadata.generation)


def _begun(observed: CheckpointBackupSnapshot, action: BeginRun, now: datetime) -> CheckpointBackupStatus:
    old, mode = observed.status, action.mode
    run = old.run + 1
    who = f"the agent of node {action.node}" if mode.mode == "container" else f"the sidecar of pod {observed.pod_name}"
    also = f" ({action.due.missed} more were due, and are this one)" if action.due.missed else ""
    why = Explanation("Started", f"run {run} has begun and waits for {who}{also}")
    status = structs.replace(
        old,
        node_name=action.node,
        pod_uid=action.pod_uid,
        mode=mode.mode,
        mode_reason=mode.reason,
        missed_runs=old.missed_runs + action.due.missed,
    )
    status = _with_run(status, observed, None, why, now, started=True)
    return _scheduled(observed, status, DueRuns(next=action.next), ON_SCHEDULE, now)


def _ended(observed: CheckpointBackupSnapshot, why: Explanation, now: datetime) -> CheckpointBackupStatus:
    old = observed.status
    if old.run == 0:
        status = _with_run(old, observed, "Failed", why, now)
    else:
        status = structs.replace(old, message=why.message[:MAX_MESSAGE])
    return _scheduled(observed, status, DueRuns(), why, now, holds=False)


def _advanced(observed: CheckpointBackupSnapshot, action: AdvanceRun, now: datetime) -> CheckpointBackupStatus:
    old, progress = observed.status, action.progress
    told = f"pushed {progress.image}" if progress.state == "pushed" else f"the sidecar reports {progress.state!r}"
    why = Explanation(action.phase, progress.message or f"run {old.run}: {told}")
    status = _with_run(old, observed, action.phase, why, now)
    if action.phase == "Checkpointed":
        saved_at = parse_optional_time(progress.saved_at) or now
        status = structs.replace(status, last_checkpoint_time=format_time(saved_at))
    if action.phase in ("ImageBuilt", "ImagePushed"):
        status = structs.replace(status, bytes=progress.bytes)
    if action.phase == "ImagePushed":
        image = BuiltImage(
            container_name=observed.training_container, image_name=progress.image, digest=progress.digest
        )
        status = structs.replace(status, built_images=(image,))
    return status


def _with_run(
    status: CheckpointBackupStatus,
    observed: CheckpointBackupSnapshot,
    phase: Phase | None,
    why: Explanation,
    now: datetime,
    *,
    started: bool = False,
) -> CheckpointBackupStatus:
    """The run in this phase; `started`: it is the next one, and nothing of the last is left."""
    message = why.message[:MAX_MESSAGE]
    generation = observed.backup.metadata.generation
    conditions = run_conditions(phase, reason=why.reason, message=message, generation=generation, at=format_time(now))
    status = structs.replace(
        status,
        phase=phase,
        message=message,
        completion_time=format_time(now) if phase in TERMINAL_PHASES and (status.run or started) else None,
        conditions=merge_conditions(status.conditions, conditions),
    )
    if not started:
        return status
    return structs.replace(status, run=status.run + 1, start_time=format_time(now), built_images=())


def _without_obstacle(observed: CheckpointBackupSnapshot, now: datetime) -> CheckpointBackupStatus:
    """What kept runs from beginning is over: a suspension, a refused spec. The message is the last run's again."""
    old = observed.status
    if old.run == 0:
        return structs.replace(_with_run(old, observed, None, ON_SCHEDULE, now), message=None)
    scheduled, completed = condition_of(old, SCHEDULED), condition_of(old, "Completed")
    if scheduled is None or scheduled.reason == ON_SCHEDULE.reason or completed is None:
        return old
    return structs.replace(old, message=completed.message)


def _scheduled(
    observed: CheckpointBackupSnapshot,
    status: CheckpointBackupStatus,
    due: DueRuns,
    why: Explanation,
    now: datetime,
    *,
    holds: bool = True,
) -> CheckpointBackupStatus:
    """When the next run is due, and for a schedule the condition that says whether any follows."""
    status = structs.replace(status, next_checkpoint_time=_time(due))
    if observed.runs_once:
        return status
    condition = Condition(
        type=SCHEDULED,
        status="True" if holds else "False",
        reason=why.reason,
        message=why.message[:MAX_MESSAGE],
        last_transition_time=format_time(now),
        observed_generation=observed.backup.metadata.generation,
    )
    return structs.replace(status, conditions=merge_conditions(status.conditions, [condition]))


def _time(due: DueRuns) -> str | None:
    return format_time(due.next) if due.next is not None else None
