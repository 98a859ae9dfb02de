"""Decides what is to be done for a CheckpointBackup. Pure functions: no I/O, no clock.

A run in container mode is carried out by the agent of the pod's node, which writes its phases. The operator begins
runs, and ends those that no agent can end. In application mode it writes the phases from what the sidecar reports.
"""

from collections.abc import Iterator
from datetime import datetime

from holdfast.checkpointbackup.actions import (
    Action,
    BeginRun,
    DeleteOldImages,
    EndSchedule,
    Explanation,
    FailDueRun,
    HoldRun,
    Idle,
)
from holdfast.checkpointbackup.due import DueRuns, due_runs
from holdfast.checkpointbackup.following import follow, seconds_text
from holdfast.checkpointbackup.mode import CannotSave, ChosenMode, choose_mode, probe_warnings, saved_containers
from holdfast.checkpointbackup.schedule import InvalidSchedule, Schedule, parse_schedule
from holdfast.checkpointbackup.snapshot import (
    POD_DELETED,
    POD_ENDED,
    SUSPENDED,
    BackupTiming,
    CheckpointBackupSnapshot,
)
from holdfast.decisions import CleanUp
from holdfast.times import format_time


def decide(observed: CheckpointBackupSnapshot, now: datetime, timing: BackupTiming) -> tuple[Action, ...]:
    old_images = (DeleteOldImages(),) if observed.has_old_images else ()
    if observed.is_under_way:
        return (*old_images, *follow(observed, now, timing))
    return (*old_images, _next_run(observed, now))


def may_begin(observed: CheckpointBackupSnapshot, now: datetime) -> bool:
    """Whether a run begins now if the pod's details allow it: these are worth reading."""
    if observed.is_under_way or observed.finished:
        return False
    try:
        schedule = _checked(observed)
    except CannotSave:
        return False
    due = due_runs(observed.backup, schedule, now)
    return due.is_due and not _has_ended(observed) and _obstacle(observed, due) is None


# The next run.


def _next_run(observed: CheckpointBackupSnapshot, now: datetime) -> Action:
    if observed.finished:
        return CleanUp()
    try:
        schedule = _checked(observed)
    except CannotSave as refusal:
        return EndSchedule(Explanation(refusal.reason, str(refusal)))
    due = due_runs(observed.backup, schedule, now)
    after = schedule.next_after(now) if schedule is not None else None
    if observed.status.phase == "CompletedPodDeleted":
        return EndSchedule(
            Explanation(POD_DELETED, f"the schedule has ended: pod {observed.pod_name} was deleted after its backup")
        )
    if _has_ended(observed):
        return _after_end(observed, due, after)
    if observed.backup.spec.suspend:
        return HoldRun(due, Explanation(SUSPENDED, "spec.suspend is true: set it to false to go on"))
    if not due.is_due:
        return Idle(due)
    return _due_run(observed, due, after)


def _checked(observed: CheckpointBackupSnapshot) -> Schedule | None:
    """The schedule of a spec that can be carried out. Raises `CannotSave`."""
    metadata, reference = observed.backup.metadata, observed.backup.spec.pod_ref
    if observed.rejected_reason:
        raise CannotSave("Refused", observed.rejected_reason)
    if reference.namespace and reference.namespace != metadata.namespace:
        raise CannotSave(
            "OtherNamespace",
            f"pod {reference.name} is in namespace {reference.namespace}, and this backup in {metadata.namespace}: "
            "memory is not to be had across namespaces; create the backup in the pod's namespace",
        )
    try:
        return parse_schedule(observed.backup.spec)
    except InvalidSchedule as error:
        raise CannotSave(error.reason, str(error)) from error


def _has_ended(observed: CheckpointBackupSnapshot) -> bool:
    """One that is being deleted ends, too, and another of its name may come; a StatefulSet makes its ended pod anew."""
    pod = observed.pod
    if pod is None or not pod.is_finished or pod.is_terminating:
        return False
    owner = pod.metadata.controller
    return owner is None or owner.kind != "StatefulSet"


def _after_end(observed: CheckpointBackupSnapshot, due: DueRuns, after: datetime | None) -> Action:
    phase = observed.pod.status.phase if observed.pod is not None else ""
    text = f"pod {observed.pod_name} has ended ({phase})"
    if observed.runs_once:
        return FailDueRun(due, after, Explanation(POD_ENDED, f"{text}: there is nothing left to save"))
    return EndSchedule(Explanation(POD_ENDED, f"the schedule has ended: {text}"))


def _due_run(observed: CheckpointBackupSnapshot, due: DueRuns, after: datetime | None) -> Action:
    obstacle = _obstacle(observed, due)
    if obstacle is not None:
        # Another backup's run has a deadline of its own.
        is_over = observed.due_age_s >= observed.backup.spec.timeout_seconds and not observed.other_backup
        return FailDueRun(due, after, _timed_out(obstacle, observed)) if is_over else HoldRun(due, obstacle)
    pod, spec = observed.details, observed.backup.spec
    if pod is None:
        return Idle(due)  # seen in the cache, and gone when its details were read: the next event tells
    try:
        mode = choose_mode(spec, pod, runs_containers=observed.runs_containers)
    except CannotSave as refusal:
        return FailDueRun(due, after, Explanation(refusal.reason, str(refusal)))
    warnings = tuple(_warnings(observed, due, mode))
    node, uid = pod.spec.node_name, pod.metadata.uid
    return BeginRun(due=due, next=after, mode=mode, node=node, pod_uid=uid, warnings=warnings)


def _obstacle(observed: CheckpointBackupSnapshot, due: DueRuns) -> Explanation | None:
    """Why the run that is due can't begin now."""
    pod, name = observed.pod, observed.pod_name
    until = f"waiting until {format_time(due.next + observed.timeout)}" if due.next is not None else "waiting"
    if pod is None:
        return Explanation("PodMissing", f"there is no pod {name}; {until}")
    if pod.is_terminating or pod.is_finished:
        return Explanation("PodTerminating", f"pod {name} is going away; {until} for another of its name")
    if pod.status.phase != "Running" or not pod.spec.node_name:
        return Explanation("PodNotRunning", f"pod {name} is not running yet ({pod.status.phase}); {until}")
    if observed.node is None:
        return Explanation("NodeMissing", f"node {pod.spec.node_name} of pod {name} is not known; {until}")
    if observed.other_backup:
        return Explanation("AnotherBackup", f"waiting for the run of CheckpointBackup {observed.other_backup}")
    return None


def _timed_out(obstacle: Explanation, observed: CheckpointBackupSnapshot) -> Explanation:
    what = obstacle.message.partition("; ")[0]
    return Explanation(obstacle.reason, f"{what}, and {seconds_text(observed.backup.spec)} have passed")


def _warnings(observed: CheckpointBackupSnapshot, due: DueRuns, mode: ChosenMode) -> Iterator[Explanation]:
    status, pod = observed.status, observed.details
    if due.missed:
        since = format_time(due.next) if due.next is not None else "then"
        yield Explanation(
            "RunsMissed",
            f"{due.missed + 1} runs were due since {since} and none could begin: one is made for all of them",
        )
    if mode.mode != "container" or pod is None:
        return
    if mode.lost:
        yield Explanation("WouldLoseFiles", f"the checkpoint of pod {pod.metadata.name} will not hold {mode.lost}")
    # Before the first run by an estimate, before the second by what the first took.
    if status.run < 2 or status.pod_uid != pod.metadata.uid:
        containers = saved_containers(observed.backup.spec, pod)
        yield from (Explanation("ProbeTooShort", text) for text in probe_warnings(containers, status.frozen_seconds))


# When a backup has to be reconciled again without a change.


def requeue_in_s(observed: CheckpointBackupSnapshot, now: datetime, timing: BackupTiming) -> Iterator[float]:
    if observed.finished:
        return
    timeout_s = observed.backup.spec.timeout_seconds
    if observed.is_under_way:
        moments = (timing.late_s, timeout_s, timeout_s + timing.grace_s)
        yield from (moment - observed.run_age_s for moment in moments if moment > observed.run_age_s)
    try:
        due = due_runs(observed.backup, _checked(observed), now)
    except CannotSave:
        return
    if due.next is not None and due.next > now:
        yield (due.next - now).total_seconds()
    elif due.is_due and observed.due_age_s < timeout_s:
        yield timeout_s - observed.due_age_s
