"""Serve: as long as the machine is there, whoever is the first to say that it is taken back is believed.

That is the mark of its Node, a list of the cloud's machines that lacks it, or the silence of its Node. The last two
raise no more than a doubt, and then the cloud is asked at once.
"""

from datetime import datetime

from msgspec import structs

from holdfast.api.machine_ends import DELETED, NOTICE, RUNS, STOPPED, TAKEN_BACK
from holdfast.api.provisionedinstance import ProvisionedInstanceStatus
from holdfast.machines.phases.presence import NODE_DELETED, SILENT, ask, doubts, is_there, shown
from holdfast.machines.phases.step import ReportTakenBack, Step, ending, nothing, with_condition, with_machine
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming, found_gone, with_status
from holdfast.machines.work import Gone
from holdfast.pods.failure import PREEMPTED, has_preemption_notice
from holdfast.times import format_time

WITHDRAWN = "NoticeWithdrawn"


def serve(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    if seen.is_ending or not seen.is_launched:
        return nothing(seen)
    if seen.is_deleted:
        # Its job may be quicker to give it back than this is to note the mark: the zone has taken it back all the same.
        return _with_notice(seen, now) if not seen.holds("Preempted") else nothing(seen)
    gone = found_gone(seen)
    if gone is not None:
        return _gone(seen, gone, now)
    told = _with_notice(seen, now)
    seen = with_status(seen, _as_shown(with_status(seen, told.status)))
    doubt = doubts(seen)
    if doubt and not is_there(seen, doubt):
        return structs.replace(ask(seen, doubt, now), effects=told.effects)
    if NODE_DELETED in doubt:
        message = f"Node {seen.machine} was deleted, and {seen.where} runs on: it is not made a Node again"
        return Step(status=ending(seen, "Joined", False, "NodeDeleted", message, now))
    if SILENT in doubt:
        message = f"Node {seen.machine} is {doubt}, and the cloud shows {seen.where} running"
        refuted = with_condition(seen, seen.status, "Preempted", False, RUNS, message, now)
        return Step(status=refuted, effects=told.effects)
    return Step(status=seen.status, effects=told.effects)


def _gone(seen: MachineSnapshot, gone: Gone, now: datetime) -> Step:
    if gone.preempted:
        status = ending(seen, "Preempted", True, TAKEN_BACK, f"the cloud has taken {seen.where} back", now)
        was_told = seen.holds("Preempted")
        return Step(status=status, effects=() if was_told else (ReportTakenBack(),))
    how = "was stopped" if gone.exists else "was deleted"
    reason = STOPPED if gone.exists else DELETED
    message = f"{seen.where} {how}, and not by this operator: nothing says that the cloud has taken it back"
    return Step(status=ending(seen, "Preempted", False, reason, message, now))


def _with_notice(seen: MachineSnapshot, now: datetime) -> Step:
    """The machine is still there, and what runs on it may be saved: it is not given back before it goes."""
    before = seen.condition("Preempted")
    was_told = before is not None and before.status == "True"
    if seen.node is None or has_preemption_notice(seen.node) == was_told:
        return nothing(seen)
    if was_told:  # the mark was taken off the node
        status = structs.replace(seen.status, preemption_notice=None)
        return Step(status=with_condition(seen, status, "Preempted", False, WITHDRAWN, "the notice was withdrawn", now))
    mark = next((each for each in seen.node.status.conditions if (each.type, each.status) == (PREEMPTED, "True")), None)
    said = mark.message if mark is not None else f"Node {seen.machine} is marked: the cloud takes it back"
    at = (mark.last_transition_time if mark is not None else None) or format_time(now)
    status = with_condition(seen, seen.status, "Preempted", True, NOTICE, said, now)
    return Step(status=structs.replace(status, preemption_notice=at), effects=(ReportTakenBack(),))


def _as_shown(seen: MachineSnapshot) -> ProvisionedInstanceStatus:
    machine = shown(seen)
    status = with_machine(seen.status, machine) if machine is not None else seen.status
    return structs.replace(status, message=_message(seen)) if status.phase == "Serve" else status


def _message(seen: MachineSnapshot) -> str:
    """Of a machine that serves: what is known no better than this."""
    if seen.problem is not None:
        return f"nobody can tell whether {seen.where} is there: {seen.problem.message}"
    if seen.silent_cloud:
        return f"nobody can tell whether {seen.where} is there: {seen.silent_cloud}"
    said = seen.condition("Preempted" if seen.holds("Preempted") else "GPUReady")
    return said.message if said is not None else ""
