"""A clean end: a workload that is deleted is gone only when its pods are, so that its GPUs are free then."""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime

from msgspec import structs

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.cluster.errors import NotFound
from holdfast.cluster.resources import GPU_WORKLOADS
from holdfast.controllers.trainingjob.observe import owner_uid
from holdfast.controllers.trainingjob.stop import stop_jobs
from holdfast.planning.gpuworkload.leftovers import blocking_pods, give_up_times
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.runtime.result import Done, RequeueAfter, Result
from holdfast.runtime.writes import TrackedClient

FINALIZER = "gpu.warp.dev/workload"
# The garbage collector's, while it takes the children of an object from it that they shall outlive.
ORPHAN = "orphan"


async def add_finalizer(session: TrackedClient, workload: GPUWorkload) -> GPUWorkload:
    """With the finalizer on it: before a node is taken for it, and so before there is anything to clean up."""
    if FINALIZER in workload.metadata.finalizers:
        return workload
    return await _set_finalizers(session, workload, (*workload.metadata.finalizers, FINALIZER))


async def finalize(session: TrackedClient, observed: Observed, now: datetime, timing: Timing) -> Result:
    """The workload is being deleted. A pod on a node that is silent does not hold it up for ever."""
    workload = observed.workload
    held = workload.metadata.finalizers
    if FINALIZER not in held:
        return Done()
    if ORPHAN not in held:
        jobs = tuple(filter(None, (*observed.old_jobs, observed.job)))
        await stop_jobs(session, jobs)
        stopping = _without_node(observed, {job.metadata.uid for job in jobs})
        if blocking_pods(stopping, now, timing):
            due = min((at for at in give_up_times(stopping, timing) if at > now), default=None)
            return RequeueAfter((due - now).total_seconds()) if due is not None else Done()
    with suppress(NotFound):  # it is gone already
        await _set_finalizers(session, workload, tuple(each for each in held if each != FINALIZER))
    return Done()


def _without_node(observed: Observed, jobs: Collection[str]) -> Observed:
    """As if it were on no node: all pods of its own Jobs have to stop."""
    workload, status = observed.workload, structs.replace(observed.status, assigned_node=None)
    pods = (*observed.pods, *observed.old_pods)
    own = tuple(pod for pod in pods if any(uid in jobs for uid in owner_uid(pod)))
    return structs.replace(observed, workload=structs.replace(workload, status=status), pods=(), old_pods=own)


async def _set_finalizers(session: TrackedClient, workload: GPUWorkload, finalizers: tuple[str, ...]) -> GPUWorkload:
    guard = {"resourceVersion": workload.metadata.resource_version, "finalizers": list(finalizers)}
    return await session.patch(GPU_WORKLOADS, workload.metadata.key, {"metadata": guard})
