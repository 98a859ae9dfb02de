"""What a phase returns: the status that follows, and what is to be done before and after it is written."""

from datetime import datetime
from typing import TypeAlias

from msgspec import Struct, structs

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Condition, merge_conditions
from holdfast.api.provisionedinstance import Phase, ProvisionedInstanceStatus
from holdfast.decisions import MAX_MESSAGE
from holdfast.machines.snapshot import MachineSnapshot
from holdfast.machines.work import MachineTask
from holdfast.providers.protocol import Machine
from holdfast.scheduling.machine_pools import ZoneRefusal
from holdfast.times import format_time


class AddFinalizer(Struct, frozen=True):
    """Before there is anything that outlives the object."""


class DropFinalizer(Struct, frozen=True):
    """No machine is left."""


class StartTask(Struct, frozen=True):
    task: MachineTask
    cause: str = ""


class CancelTask(Struct, frozen=True):
    task: MachineTask
    if_queued: bool = False
    """Only as long as it has not had its turn."""


class ReserveNode(Struct, frozen=True):
    """Other pods keep away from the node, which tells by labels what it is."""

    node: Node


class RemoveNode(Struct, frozen=True):
    """The machine is gone: its Node goes, and the pods that nobody can end any more."""

    node: Node | None
    pods: tuple[Pod, ...] = ()


class RevokeToken(Struct, frozen=True):
    """Nothing is to join with what was made for this machine."""


class ReportLaunched(Struct, frozen=True):
    """The zone had a machine to spare."""


class ReportReady(Struct, frozen=True):
    """A machine of this template is of use in this zone."""


class ReportRefused(Struct, frozen=True):
    refusal: ZoneRefusal


class ReportTakenBack(Struct, frozen=True):
    """The zone has taken the machine back."""


class ReportNothing(Struct, frozen=True):
    """The zone gave no answer to this object's request, and will give none."""


Effect: TypeAlias = (
    AddFinalizer
    | DropFinalizer
    | StartTask
    | CancelTask
    | ReserveNode
    | RemoveNode
    | RevokeToken
    | ReportLaunched
    | ReportReady
    | ReportRefused
    | ReportTakenBack
    | ReportNothing
)


class Step(Struct, frozen=True, kw_only=True):
    status: ProvisionedInstanceStatus
    effects: tuple[Effect, ...] = ()
    """Done before the status is written."""
    then: tuple[Effect, ...] = ()
    """Done after it: what a crash in between must find in status."""
    recheck_at: tuple[datetime, ...] = ()
    """When the phase may see something else although nothing changes."""


def nothing(seen: MachineSnapshot) -> Step:
    return Step(status=seen.status)


# Parts of the next status.


def at_step(
    status: ProvisionedInstanceStatus,
    phase: Phase,
    step: str,
    message: str,
    now: datetime,
    *,
    since: datetime | None = None,
) -> ProvisionedInstanceStatus:
    """The deadline of a step counts from when it is entered, or from `since`."""
    entered = structs.replace(status, phase=phase, step=step, message=message[:MAX_MESSAGE])
    if (status.phase, status.step) == (phase, step) and status.step_start_time:
        return entered
    return structs.replace(entered, step_start_time=format_time(since or now))


def with_condition(
    seen: MachineSnapshot,
    status: ProvisionedInstanceStatus,
    kind: str,
    holds: bool,
    reason: str,
    message: str,
    now: datetime,
) -> ProvisionedInstanceStatus:
    condition = Condition(
        type=kind,
        status="True" if holds else "False",
        reason=reason,
        message=message[:MAX_MESSAGE],
        last_transition_time=format_time(now),
        observed_generation=seen.instance.metadata.generation,
    )
    return structs.replace(
        status,
        conditions=merge_conditions(status.conditions, [condition]),
        observed_generation=seen.instance.metadata.generation,
    )


def waiting(
    seen: MachineSnapshot,
    phase: Phase,
    kind: str,
    step: str,
    message: str,
    now: datetime,
    *,
    since: datetime | None = None,
) -> ProvisionedInstanceStatus:
    """The condition does not hold yet: its reason is the step."""
    return with_condition(
        seen, at_step(seen.status, phase, step, message, now, since=since), kind, False, step, message, now
    )


def ending(
    seen: MachineSnapshot, kind: str, holds: bool, reason: str, message: str, now: datetime
) -> ProvisionedInstanceStatus:
    """The machine is given back, for good: this condition tells why."""
    status = at_step(seen.status, "End", "Deleting", message, now)
    return with_condition(seen, status, kind, holds, reason, message, now)


def unusable(reason: str, said: str) -> ReportRefused:
    """A machine of this template was of no use: the next one is made in another zone, or after a pause."""
    return ReportRefused(ZoneRefusal(scope="template-zone", reason=reason, said=said))


def with_machine(status: ProvisionedInstanceStatus, machine: Machine) -> ProvisionedInstanceStatus:
    """What the cloud shows of the machine; what it does not tell at the moment stays."""
    created = format_time(machine.created_at) if machine.created_at is not None else None
    return structs.replace(
        status,
        instance_id=machine.id or status.instance_id,
        internal_ip=machine.internal_ip or status.internal_ip,
        external_ip=machine.external_ip or status.external_ip,
        state=machine.state or status.state,
        creation_time=status.creation_time or created,
    )
