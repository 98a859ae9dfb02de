"""End: the machine is given back, and all that was made for it goes, whatever has become of its job and template."""

from datetime import datetime

from msgspec import structs

from holdfast.api.machine_ends import GONE, end_reason
from holdfast.api.provisionedinstance import ProvisionedInstanceStatus
from holdfast.machines.phases.gpu_ready import is_of_daemon_set
from holdfast.machines.phases.launch import was_refused
from holdfast.machines.phases.step import (
    CancelTask,
    DropFinalizer,
    Effect,
    RemoveNode,
    ReportNothing,
    RevokeToken,
    StartTask,
    Step,
    at_step,
    nothing,
)
from holdfast.machines.snapshot import Absent, MachineSnapshot, MachineTiming, found_gone, is_due
from holdfast.machines.work import MachineTask, Succeeded, TaskRunning, error_of

DELETING = "Deleting"


def end(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    if not (seen.is_deleted or seen.is_ending):
        return nothing(seen)
    if seen.finished:
        return Step(status=seen.status, effects=(DropFinalizer(),) if seen.has_finalizer else ())
    if seen.is_deleted and not seen.has_finalizer:
        return nothing(seen)
    if isinstance(seen.work.get(MachineTask.JOIN), TaskRunning):
        # What it makes in its last moment is to be seen before the machine is called gone.
        return Step(status=seen.status, effects=(CancelTask(MachineTask.JOIN),))
    if not _is_gone(seen):
        return _give_back(seen, now, timing)
    effects = (*_clean_up(seen), ReportNothing())
    if seen.is_deleted:
        return Step(status=seen.status, effects=(*effects, DropFinalizer()))
    state = "TERMINATED" if seen.is_launched else seen.status.state
    why = end_reason(seen.instance)
    message = why.message if why is not None else ""
    status = at_step(structs.replace(seen.status, state=state), "End", GONE, message, now)
    return Step(status=status, effects=effects, then=(DropFinalizer(),) if seen.has_finalizer else ())


def _is_gone(seen: MachineSnapshot) -> bool:
    if not seen.is_begun or was_refused(seen) or isinstance(seen.work.get(MachineTask.DELETE), Succeeded):
        return True
    gone = found_gone(seen)
    return gone is not None and (not gone.exists or (gone.preempted and isinstance(seen.listed, Absent)))


def _give_back(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    launching, deleting = seen.work.get(MachineTask.LAUNCH), seen.work.get(MachineTask.DELETE)
    if isinstance(launching, TaskRunning):
        if launching.is_queued:
            # In this process nothing was asked for yet, and nothing is made to be deleted.
            return Step(status=seen.status, effects=(CancelTask(MachineTask.LAUNCH, if_queued=not seen.is_ending),))
        # A request that is on its way could make the machine after it was looked for in vain.
        over_at = seen.step_over_at(timing.launch_s, now)
        if seen.is_ending or now >= over_at:
            return Step(status=seen.status, effects=(CancelTask(MachineTask.LAUNCH),))
        return Step(status=seen.status, recheck_at=(over_at,))
    gone = found_gone(seen)
    fades_until = seen.step_over_at(timing.fade_s, now)
    if gone is not None and gone.preempted and seen.is_ending and now < fades_until:
        return Step(status=seen.status, recheck_at=(fades_until,))  # the cloud deletes it itself
    status = _deleting(seen, now)
    if seen.problem is not None:
        return Step(status=status)
    then = (StartTask(MachineTask.DELETE),) if is_due(deleting, now) else ()
    return Step(status=status, then=then)


def _deleting(seen: MachineSnapshot, now: datetime) -> ProvisionedInstanceStatus:
    """Without trouble nothing is written: why the machine ends is said already, or its object goes in a moment."""
    error = error_of(seen.work.get(MachineTask.DELETE))
    trouble = seen.problem.message if seen.problem is not None else str(error) if error is not None else ""
    if not trouble:
        return seen.status
    why = f"{seen.where} can't be deleted: {trouble}"
    return at_step(seen.status, "End", DELETING, why, now)


def _clean_up(seen: MachineSnapshot) -> tuple[Effect, ...]:
    pods = tuple(pod for pod in seen.pods if not pod.is_finished and not is_of_daemon_set(pod))
    nodes: tuple[Effect, ...] = (RemoveNode(seen.node, pods),) if seen.node is not None or pods else ()
    # Whoever has joined in this process has revoked its token.
    is_revoked = not seen.is_launched or isinstance(seen.work.get(MachineTask.JOIN), Succeeded)
    return nodes if is_revoked else (*nodes, RevokeToken())
