"""Whether the machine is still there: the cloud is asked about one machine only where something speaks against it."""

from datetime import datetime

from holdfast.machines.phases.step import StartTask, Step
from holdfast.machines.snapshot import STOPPED_STATES, Absent, Listed, MachineSnapshot, is_due
from holdfast.machines.work import MachineTask, Succeeded
from holdfast.providers.protocol import Machine

NODE_DELETED, SILENT = "its Node is gone", "not ready since"


def ask(seen: MachineSnapshot, cause: str, now: datetime) -> Step:
    """Nothing is decided before the cloud has answered."""
    then = (StartTask(MachineTask.CHECK, cause),) if is_due(seen.work.get(MachineTask.CHECK), now) else ()
    return Step(status=seen.status, then=then)


def is_there(seen: MachineSnapshot, cause: str) -> bool:
    """The cloud was asked for this cause, and shows a machine that runs."""
    check = seen.work.get(MachineTask.CHECK)
    return isinstance(check, Succeeded) and check.cause == cause and isinstance(check.value, Machine)


def doubts(seen: MachineSnapshot) -> str:
    """What speaks against the machine; "" when nothing does. The same doubt is asked about once."""
    return "; ".join(filter(None, (_list_doubt(seen), _node_doubt(seen))))


def _list_doubt(seen: MachineSnapshot) -> str:
    match seen.listed:
        case Absent(listing):
            return f"missing in list {listing}"
        case Listed(machine, listing) if machine.state in STOPPED_STATES:
            return f"{machine.state} in list {listing}"
    return ""


def _node_doubt(seen: MachineSnapshot) -> str:
    if not seen.holds("Joined"):
        return ""
    if seen.node is None:
        return NODE_DELETED
    if seen.holds("Preempted"):
        return ""  # its end is announced, and the next list tells whether it has come
    ready = next((each for each in seen.node.status.conditions if each.type == "Ready"), None)
    if ready is not None and ready.status != "True":
        return f"{SILENT} {ready.last_transition_time}"
    return ""


def shown(seen: MachineSnapshot) -> Machine | None:
    """The machine as the cloud has shown it last."""
    if isinstance(seen.listed, Listed):
        return seen.listed.machine
    check = seen.work.get(MachineTask.CHECK)
    return check.value if isinstance(check, Succeeded) and isinstance(check.value, Machine) else None
