"""Makes the Job of a GPUWorkload's try, without ever touching one that is not its own."""

from msgspec import structs

from holdfast.api.builtin import Job
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, Forbidden, Invalid
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import JOBS
from holdfast.errors import HoldfastError
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.tries import last_attempt, reservation_id
from holdfast.runtime.result import TerminalError
from holdfast.runtime.writes import TrackedClient
from holdfast.workloads.gpuworkload.job import workload_job
from holdfast.workloads.trainingjob.defaults import Defaults


class Obstacle(HoldfastError):
    """Something that is not ours to remove stands in the way; it may go by itself."""


async def ensure_job(observed: Observed, cluster: Cluster, session: TrackedClient, defaults: Defaults) -> Observed:
    """With the Job of the try that is in status, made now or found: a crash after its creation makes no second one."""
    try:
        job = await _create_or_get(observed.workload, cluster, session, defaults)
    except (Obstacle, Forbidden) as error:
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
    _check_own(seen, workload)
    return seen


def _check_own(seen: Job, workload: GPUWorkload) -> None:
    owner, what = seen.metadata.controller, f"Job {seen.metadata.name}"
    if owner is None or owner.uid != workload.metadata.uid:
        if owner is not None and (owner.kind, owner.name) == ("GPUWorkload", workload.metadata.name):
            raise Obstacle(f"waiting for {what} of an earlier GPUWorkload of this name to be deleted")
        whose = f"{owner.kind} {owner.name}" if owner is not None else "nobody that this workload knows"
        raise Obstacle(f"{what} is there already and belongs to {whose}: delete it, or give this workload another name")
    if seen.metadata.deletion_timestamp:
        raise Obstacle(f"waiting for {what} to be deleted before it is made again")
