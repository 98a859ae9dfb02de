"""Launch: until the cloud has accepted the machine. Status says that it may exist before the cloud is asked for it."""

from datetime import datetime

from msgspec import structs

from holdfast.api.machine_ends import DELETED, TAKEN_BACK
from holdfast.api.provisionedinstance import ProvisionedInstanceStatus
from holdfast.machines.joining import CannotJoin, JoinStep
from holdfast.machines.phases.step import (
    AddFinalizer,
    ReportLaunched,
    ReportRefused,
    ReportTakenBack,
    StartTask,
    Step,
    at_step,
    ending,
    nothing,
    unusable,
    waiting,
    with_condition,
    with_machine,
)
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming, is_due, with_status
from holdfast.machines.work import Failed, MachineTask, Succeeded, TaskRunning, error_of, has_run
from holdfast.providers.errors import CloudUnauthorized, InvalidMachine, MachineEnded, QuotaExceeded, Stockout
from holdfast.providers.protocol import Machine
from holdfast.scheduling.machine_pools import Scope, ZoneRefusal
from holdfast.times import parse_optional_time

TEMPLATE, INSERT = "Template", "Insert"
# The last try has failed, and another one follows by itself.
RETRYING = "Retrying"
TIMED_OUT, TEMPLATE_MISSING = "TimedOut", "TemplateMissing"
REFUSED = (Stockout.reason, QuotaExceeded.reason, InvalidMachine.reason)


def launch(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    if seen.is_deleted or seen.is_ending or seen.is_launched:
        return nothing(seen)
    work = seen.work.get(MachineTask.LAUNCH)
    if isinstance(work, Succeeded) and isinstance(work.value, Machine):
        return _launched(seen, work.value, now)
    error = error_of(work)
    if isinstance(error, MachineEnded):
        return _ended(seen, error, now)
    if isinstance(error, Stockout | QuotaExceeded | InvalidMachine):
        return _refused(seen, error, now)
    if seen.template is None and not isinstance(work, TaskRunning):
        return _without_template(seen, now, timing)
    if seen.problem is not None:
        return Step(status=waiting(seen, "Launch", "Launched", seen.problem.reason, seen.problem.message, now))
    if isinstance(error, CannotJoin):
        return _cannot_join(seen, error, now, timing)
    if isinstance(error, CloudUnauthorized):
        status = waiting(seen, "Launch", "Launched", "Unauthorized", str(error), now)
        return Step(status=status, then=_again(seen, now))
    return _under_way(seen, error, now, timing)


def _cannot_join(seen: MachineSnapshot, error: CannotJoin, now: datetime, timing: MachineTiming) -> Step:
    """A person has to mend it. An earlier call may have made the machine unheard, so it is not waited for for ever."""
    since = parse_optional_time(seen.status.step_start_time) if seen.status.step == INSERT else None
    status = waiting(seen, "Launch", "Launched", error.reason, str(error), now, since=since)
    if not seen.is_begun:
        return Step(status=status, then=_again(seen, now))
    over_at = with_status(seen, status).step_over_at(timing.launch_s, now)
    if now >= over_at and _is_tried(seen, now, timing):
        # The zone is not to blame, and does not rest.
        message = f"{seen.where} was not accepted within {timing.launch_s:g} s: {error}"
        return Step(status=ending(seen, "Launched", False, TIMED_OUT, message, now))
    return Step(status=status, then=_again(seen, now), recheck_at=(over_at,))


def _under_way(seen: MachineSnapshot, error: Exception | None, now: datetime, timing: MachineTiming) -> Step:
    status = _asked_for(seen, error, now)
    over_at = with_status(seen, status).step_over_at(timing.launch_s, now)
    if now >= over_at and _is_tried(seen, now, timing):
        said = f": {error}" if error is not None else ""
        message = f"{seen.where} was not accepted within {timing.launch_s:g} s{said}"
        return Step(
            status=ending(seen, "Launched", False, TIMED_OUT, message, now), effects=(unusable(TIMED_OUT, message),)
        )
    return Step(
        status=status,
        effects=() if seen.has_finalizer else (AddFinalizer(),),
        then=_again(seen, now),
        recheck_at=(over_at,),
    )


def _is_tried(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> bool:
    """An operator that was away asks once before it gives up."""
    work = seen.work.get(MachineTask.LAUNCH)
    return isinstance(work, Failed) or has_run(work, timing.resumed_s, now)


def _asked_for(seen: MachineSnapshot, error: Exception | None, now: datetime) -> ProvisionedInstanceStatus:
    """From here on there may be a machine: its name, zone and project are enough to find and to delete it."""
    message = f"waiting for the cloud to accept {seen.where}" + (f": {error}" if error is not None else "")
    status = waiting(seen, "Launch", "Launched", INSERT, message, now)
    if error is not None:
        status = with_condition(seen, status, "Launched", False, RETRYING, message, now)
    return structs.replace(status, instance_name=seen.machine, zone=seen.zone, project=seen.project)


def _again(seen: MachineSnapshot, now: datetime) -> tuple[StartTask, ...]:
    return (StartTask(MachineTask.LAUNCH),) if is_due(seen.work.get(MachineTask.LAUNCH), now) else ()


def _launched(seen: MachineSnapshot, machine: Machine, now: datetime) -> Step:
    status = with_condition(
        seen, with_machine(seen.status, machine), "Launched", True, "Accepted", f"the cloud has made {seen.where}", now
    )
    message = f"waiting for {seen.where} to join the cluster"
    status = at_step(status, "Join", JoinStep.HOST_KEY, message, now)
    status = with_condition(seen, status, "Joined", False, JoinStep.HOST_KEY, message, now)
    return Step(status=status, effects=(ReportLaunched(),))


def _ended(seen: MachineSnapshot, error: MachineEnded, now: datetime) -> Step:
    """An earlier call had made it. It is not made a second time."""
    made = with_condition(seen, seen.status, "Launched", True, "Accepted", f"the cloud had made {seen.where}", now)
    reason = TAKEN_BACK if error.preempted else DELETED
    message = f"{seen.where}: {error}"
    status = ending(with_status(seen, made), "Preempted", error.preempted, reason, message, now)
    return Step(status=status, effects=(ReportTakenBack() if error.preempted else unusable(reason, message),))


def _refused(seen: MachineSnapshot, error: Stockout | QuotaExceeded | InvalidMachine, now: datetime) -> Step:
    reason = error.reason
    match error:
        case Stockout():
            refusal = ZoneRefusal(scope="zone", reason=reason, said=str(error))
        case QuotaExceeded():
            refusal = ZoneRefusal(scope=error.scope, reason=reason, said=str(error))
        case InvalidMachine():
            # Others' templates may do well there, and so does this one once it is corrected.
            scope: Scope = "template-zone" if error.scope == "zone" else "template"
            refusal = ZoneRefusal(scope=scope, reason=reason, said=str(error))
    message = f"{seen.where} was not made: {error}"
    return Step(status=ending(seen, "Launched", False, reason, message, now), effects=(ReportRefused(refusal),))


def _without_template(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    """It may come: objects can be applied in any order. One that is gone is not waited for for ever."""
    name = seen.instance.spec.vm_ref.name
    message = f"there is no SpotInstanceVM {name} to make a machine from: create it"
    status = waiting(seen, "Launch", "Launched", TEMPLATE, message, now)
    over_at = with_status(seen, status).step_over_at(timing.launch_s, now)
    if now < over_at:
        return Step(status=status, recheck_at=(over_at,))
    message = f"SpotInstanceVM {name} did not come within {timing.launch_s:g} s"
    return Step(status=ending(seen, "Launched", False, TEMPLATE_MISSING, message, now))


def was_refused(seen: MachineSnapshot) -> bool:
    """The cloud has said for good that it made no machine."""
    launched = seen.condition("Launched")
    return launched is not None and launched.status == "False" and launched.reason in REFUSED and seen.is_ending
