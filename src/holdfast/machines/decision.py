"""Decides what is to be done for a ProvisionedInstance: its phases, run in order over one observation. Pure."""

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.provisionedinstance import ProvisionedInstanceStatus
from holdfast.machines.phases.end import end
from holdfast.machines.phases.gpu_ready import gpu_ready
from holdfast.machines.phases.join import join
from holdfast.machines.phases.launch import launch
from holdfast.machines.phases.ownership import ownership
from holdfast.machines.phases.serve import serve
from holdfast.machines.phases.step import Effect, Step
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming, with_status
from holdfast.machines.work import Failed

PhaseFunction: TypeAlias = Callable[[MachineSnapshot, datetime, MachineTiming], Step]

PHASES: tuple[PhaseFunction, ...] = (ownership, launch, join, gpu_ready, serve, end)


class Pass(Struct, frozen=True, kw_only=True):
    """The effects in order, then the status."""

    status: ProvisionedInstanceStatus
    effects: tuple[Effect, ...] = ()
    recheck_at: tuple[datetime, ...] = ()


def decide(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> tuple[Pass, ...]:
    """Each phase goes on from the status that the one before it leaves; it is written once for all of them.

    Only why a machine ends is written before its Node and its pods go: whoever misses these is to find the reason.
    """
    effects: list[Effect] = []
    then: list[Effect] = []
    recheck_at = [work.retry_at for work in seen.work.values() if isinstance(work, Failed)]
    was_ending, told = seen.is_ending, tuple[Pass, ...]()
    for phase in PHASES:
        if phase is end and seen.is_ending and not was_ending:
            told, effects = (Pass(status=seen.status, effects=tuple(effects)),), []
        step = phase(seen, now, timing)
        seen = with_status(seen, step.status)
        effects += step.effects
        then += step.then
        recheck_at += step.recheck_at
    due = tuple(at for at in recheck_at if at > now)
    first = Pass(status=seen.status, effects=tuple(effects), recheck_at=due)
    return (*told, first, *((Pass(status=seen.status, effects=tuple(then), recheck_at=due),) if then else ()))


def is_awaited(old: ProvisionedInstanceStatus, new: ProvisionedInstanceStatus) -> bool:
    """Whether somebody waits for what has changed. The rest, such as the step of a join, may be over in a moment."""
    return _essence(old) != _essence(new)


def _essence(status: ProvisionedInstanceStatus) -> tuple[object, ...]:
    conditions = {each.type: each for each in status.conditions}
    launched = conditions.get("Launched")
    outcomes = [(kind, conditions[kind].status) for kind in ("GPUReady", "Preempted") if kind in conditions]
    return (
        "" if status.phase in ("Join", "GPUReady") else status.phase,
        status.step if status.phase in ("Launch", "End") else "",
        status.message if status.phase == "End" else "",
        status.instance_name,
        status.preemption_notice,
        (launched.status, launched.reason) if launched is not None else None,
        [outcome for outcome in outcomes if outcome != ("GPUReady", "False")],
    )
