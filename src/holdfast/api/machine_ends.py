"""How far the end of a machine is, and why it ends, as the status of its ProvisionedInstance says."""

from holdfast.api.meta import Condition
from holdfast.api.provisionedinstance import ProvisionedInstance, ProvisionedInstanceStatus

# The last step of the phase End: no machine is left, and no Node.
GONE = "Gone"
# What a machine goes through, as conditions.
STEPS = ("Launched", "Joined", "GPUReady")
# Reasons of the condition Preempted. Only the first means that the machine is still there.
NOTICE, TAKEN_BACK = "PreemptionNotice", "TakenBack"
# The same where it is False: somebody else's doing.
DELETED, STOPPED = "MachineDeleted", "MachineStopped"
# … and where nobody is left whom the machine would serve.
JOB_GONE = "JobGone"
# … and where its Node is silent, and the cloud shows the machine running all the same.
RUNS = "MachineRuns"


def status_of(instance: ProvisionedInstance) -> ProvisionedInstanceStatus:
    return instance.status or ProvisionedInstanceStatus()


def is_ending(instance: ProvisionedInstance) -> bool:
    """The machine is of no use any more, or was never made: its need is to be met by another one."""
    return bool(instance.metadata.deletion_timestamp) or status_of(instance).phase == "End"


def is_gone(instance: ProvisionedInstance) -> bool:
    """No machine is left: another one may be made for the same need."""
    status = status_of(instance)
    return status.phase == "End" and status.step == GONE


def end_reason(instance: ProvisionedInstance) -> Condition | None:
    """The condition that tells why the machine ends; None where its object was deleted, or while it does not end.

    Preempted, if True: a preemption. Preempted, if False: somebody deleted or stopped the machine, or its job is
    gone. Launched: the cloud made none, and the reason is Stockout, QuotaExceeded, Invalid, TimedOut or
    TemplateMissing. Joined and GPUReady: it was made, and did not become a Node that can be used.
    """
    status = status_of(instance)
    if status.phase != "End":
        return None
    found = {each.type: each for each in status.conditions}
    taken = found.get("Preempted")
    if taken is not None and (taken.status == "True" or taken.reason in (DELETED, STOPPED, JOB_GONE)):
        return taken
    return next((found[each] for each in STEPS if each in found and found[each].status == "False"), None)
