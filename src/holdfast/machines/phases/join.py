"""Join: until the machine is a Node of this cluster, whoever saw to that."""

from datetime import datetime, timedelta

from msgspec import structs

from holdfast.machines.joining import JoinFailed, JoinStep
from holdfast.machines.phases.presence import ask, is_there
from holdfast.machines.phases.step import (
    RevokeToken,
    StartTask,
    Step,
    at_step,
    ending,
    nothing,
    unusable,
    waiting,
    with_condition,
)
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming, found_gone, is_due
from holdfast.machines.work import Failed, MachineTask, Succeeded, TaskRunning, error_of, has_run
from holdfast.times import format_time

NODE_READY = "NodeReady"
NOT_JOINED = "join"


def join(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    if seen.is_deleted or seen.is_ending or not seen.is_launched or seen.holds("Joined") or found_gone(seen):
        return nothing(seen)
    if seen.node is not None:
        return _joined(seen, now)
    work = seen.work.get(MachineTask.JOIN)
    error = error_of(work)
    if isinstance(error, JoinFailed):
        return _failed(seen, error.step, str(error), now)
    status, over_at = seen.status, seen.step_over_at(timing.join_step_s, now)
    if isinstance(work, TaskRunning) and work.progress is not None:
        # Its own deadline is the joiner's to keep, and the joiner says what was missing.
        progress, over_at = work.progress, work.progress.deadline + timedelta(seconds=timing.resumed_s)
        message = f"{progress.message}; its time is over at {format_time(progress.deadline)}"
        status = waiting(seen, "Join", "Joined", progress.step, message, now, since=work.step_since)
    elif isinstance(work, TaskRunning) and work.is_queued:
        message = f"{seen.where} waits for its turn to join: as many others do at the moment as may at the same time"
        status = structs.replace(status, message=message)
    elif isinstance(work, Failed):
        message = f"{seen.where} can't be logged in to: {work.error}"
        status = structs.replace(status, message=message)
    is_tried = isinstance(work, Failed | Succeeded) or has_run(work, timing.resumed_s, now)
    if now >= over_at and is_tried:
        step = status.step or JoinStep.NODE_REGISTERED
        return _failed(seen, step, f"no Node {seen.machine} came up in time: {status.message}", now)
    then = (StartTask(MachineTask.JOIN),) if not isinstance(work, Succeeded) and is_due(work, now) else ()
    return Step(status=status, then=then, recheck_at=(over_at,))


def _joined(seen: MachineSnapshot, now: datetime) -> Step:
    status = structs.replace(seen.status, node_name=seen.machine, joined_cluster=True)
    status = with_condition(seen, status, "Joined", True, "NodeRegistered", f"Node {seen.machine} is there", now)
    status = at_step(status, "GPUReady", NODE_READY, f"waiting for Node {seen.machine} to be ready", now)
    # A join that is under way sees to its token itself.
    is_joining = isinstance(seen.work.get(MachineTask.JOIN), TaskRunning | Succeeded)
    return Step(status=status, effects=() if is_joining else (RevokeToken(),))


def _failed(seen: MachineSnapshot, step: str, message: str, now: datetime) -> Step:
    """A machine that was taken back meanwhile did not fail: the cloud is asked first."""
    if not is_there(seen, NOT_JOINED):
        return ask(seen, NOT_JOINED, now)
    text = f"{seen.where} did not join the cluster, step {step}: {message}"
    return Step(status=ending(seen, "Joined", False, step, text, now), effects=(unusable(step, text),))
