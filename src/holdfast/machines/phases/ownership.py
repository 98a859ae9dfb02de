"""Whose the machine is: what was ordered for a job is not kept running when that job is gone and its object is not."""

from datetime import datetime

from holdfast.api.machine_ends import JOB_GONE
from holdfast.api.spotinstancejob import KIND as SPOT_INSTANCE_JOB
from holdfast.machines.phases.step import Step, ending, nothing
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming
from holdfast.pods.template import MANAGED_BY


def ownership(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    job = seen.instance.spec.job_ref
    if seen.is_deleted or seen.is_ending or job is None or not _is_ours(seen) or _has_job(seen):
        return nothing(seen)
    message = (
        f"{seen.where} was ordered for SpotInstanceJob {job.name}, which does not own this object any more, as after a "
        "deletion with --cascade=orphan: its job is gone"
    )
    return Step(status=ending(seen, "Preempted", False, JOB_GONE, message, now))


def _is_ours(seen: MachineSnapshot) -> bool:
    """Who orders a machine by hand says nothing of this operator, and gives it back by hand."""
    return seen.instance.metadata.labels.get(MANAGED_BY) == "holdfast"


def _has_job(seen: MachineSnapshot) -> bool:
    """Nobody but the garbage collector takes the reference away: it deletes the object where the job alone is gone."""
    return any(owner.kind == SPOT_INSTANCE_JOB.kind for owner in seen.instance.metadata.owner_references)
