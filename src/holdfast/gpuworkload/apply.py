"""Writes the finalizer of a GPUWorkload and the Job of its attempt, and reads why the Job has no pod.

A deleted workload is gone only when its pods are gone, so that its GPUs are free then.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime

from msgspec import structs

from holdfast.api.core.objects import Job
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS
from holdfast.gpuworkload.decision import blocking_pods, give_up_times
from holdfast.gpuworkload.job import workload_job
from holdfast.gpuworkload.snapshot import (
    GPUWorkloadSnapshot,
    GPUWorkloadTiming,
    lacks_pod,
    last_attempt,
    reservation_id,
)
from holdfast.pods.failure import sanitize
from holdfast.pods.start_problems import refused_because
from holdfast.pods.template import Defaults
from holdfast.runtime.children import Blocked, ensure_own_child, newest_warning, owner_uid, stop_jobs
from holdfast.runtime.controller import Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.read_your_writes import TrackedClient

FINALIZER = "gpu.warp.dev/workload"
# The garbage collector's finalizer, while it orphans the children that are to outlive their owner.
ORPHAN = "orphan"


async def add_finalizer(session: TrackedClient, workload: GPUWorkload) -> GPUWorkload:
    """Adds the finalizer before a node is reserved, and so before there is anything to clean up."""
    if FINALIZER in workload.metadata.finalizers:
        return workload
    return await _set_finalizers(session, workload, (*workload.metadata.finalizers, FINALIZER))


async def finalize(
    session: TrackedClient, observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming
) -> Result:
    """The workload is being deleted. A pod on an unreachable node does not delay the deletion for ever."""
    workload = observed.workload
    finalizers = workload.metadata.finalizers
    if FINALIZER not in finalizers:
        return Done()
    if ORPHAN not in finalizers:
        jobs = tuple(filter(None, (*observed.old_jobs, observed.job)))
        await stop_jobs(session, jobs)
        stopping = _without_node(observed, {job.metadata.uid for job in jobs})
        if blocking_pods(stopping, now, timing):
            due = min((at for at in give_up_times(stopping, timing) if at > now), default=None)
            return RequeueAfter((due - now).total_seconds()) if due is not None else Done()
    with suppress(NotFound):  # the workload is gone already
        await _set_finalizers(session, workload, tuple(finalizer for finalizer in finalizers if finalizer != FINALIZER))
    return Done()


def _without_node(observed: GPUWorkloadSnapshot, jobs: Collection[str]) -> GPUWorkloadSnapshot:
    """The observation as if no node were assigned: all pods of the workload's own Jobs have to stop."""
    workload, status = observed.workload, structs.replace(observed.status, assigned_node=None)
    pods = (*observed.pods, *observed.old_pods)
    own = tuple(pod for pod in pods if any(uid in jobs for uid in owner_uid(pod)))
    return structs.replace(observed, workload=structs.replace(workload, status=status), pods=(), old_pods=own)


async def _set_finalizers(session: TrackedClient, workload: GPUWorkload, finalizers: tuple[str, ...]) -> GPUWorkload:
    guard = {"resourceVersion": workload.metadata.resource_version, "finalizers": list(finalizers)}
    return await session.patch(GPU_WORKLOADS, workload.metadata.key, {"metadata": guard})


# Creates the Job of an attempt, and never touches a Job of another owner.


async def ensure_job(
    observed: GPUWorkloadSnapshot, cluster: Cluster, session: TrackedClient, defaults: Defaults
) -> GPUWorkloadSnapshot:
    """Creates or finds the Job of the attempt in status: a crash after its creation makes no second Job."""
    try:
        job = await _create_or_get(observed.workload, cluster, session, defaults)
    except (Blocked, Forbidden) as error:
        return structs.replace(observed, blocked_by=str(error))
    except Invalid as error:
        raise TerminalError("Refused", str(error)) from error
    return structs.replace(observed, job=job)


async def _create_or_get(workload: GPUWorkload, cluster: Cluster, session: TrackedClient, defaults: Defaults) -> Job:
    body = workload_job(workload, defaults, reservation_id(workload, last_attempt(workload)))
    namespace = workload.metadata.namespace
    try:
        return await session.create(JOBS, body, namespace=namespace)
    except AlreadyExists:
        seen = await cluster.get(JOBS, Key(namespace, body["metadata"]["name"]))
    ensure_own_child(seen, "Job", workload, GPU_WORKLOADS, noun="workload")
    return seen


# Finds out why an attempt has no pod; only the Events of its Job report the reason.


async def with_job_problem(observed: GPUWorkloadSnapshot, cluster: Cluster) -> GPUWorkloadSnapshot:
    """Reads the Events with each reconcile. These are few: without a pod nothing changes."""
    if observed.job is None or not lacks_pod(observed):
        return observed
    warning = await newest_warning(cluster, observed.job)
    return structs.replace(observed, job_problem=sanitize(refused_because(warning))) if warning else observed
