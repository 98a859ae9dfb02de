"""What `holdfast logs` is asked for, and where its log is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from holdfast.api.core.objects import Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.api.meta import Key
from holdfast.cli.errors import UsageError
from holdfast.cli.logs.spotinstancejob import follow_replicas, replicas
from holdfast.cli.logs.streams import POLL_S, LogOptions, NoLog, Source, follow, have_several, read_log, write
from holdfast.cli.logs.trainingjob import follow_job, workers
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import Session
from holdfast.cluster.errors import NotFound
from holdfast.cluster.resources import GPU_WORKLOADS, PODS
from holdfast.gpuworkload.job import WORKLOAD_LABEL
from holdfast.gpuworkload.snapshot import FINISHED_PHASES
from holdfast.trainingjob.objects.names import JOB_NAME_LABEL


class FoundLogs(Struct, frozen=True, kw_only=True):
    sources: Sequence[Source]
    follow: Callable[[], Awaitable[int]] | None = None
    """Follows these and what comes after them, where more than these may come."""


async def print_logs(session: Session, what: str, options: LogOptions) -> int:
    found = await _find(session, what, options)
    several = have_several(found.sources)
    if options.follow:
        if found.follow is not None and options.attempt is None:
            return await found.follow()
        await asyncio.gather(*(follow(session, source, options, several=several) for source in found.sources))
        return 0
    for source in found.sources:
        write(source, await read_log(session, source, options), several=several)
    return 0


async def _find(session: Session, what: str, options: LogOptions) -> FoundLogs:
    word, slash, name = what.rpartition("/")
    key = Key(session.namespace, name)
    if slash:
        kind = find_kind(word).resource.kind
        if kind not in FINDERS:
            raise UsageError(f"{what} has no log of its own: write tj/NAME, gpuw/NAME, sij/NAME or pod/NAME")
        return await FINDERS[kind](session, key, options)
    for find in FINDERS.values():
        with suppress(NotFound):
            return await find(session, key, options)
    listing = "`holdfast get tj,gpuw,sij,pods` lists them"
    raise NotFound(f"{key.namespace} has no TrainingJob, GPUWorkload, SpotInstanceJob or pod {name!r}: {listing}")


async def _training_job(session: Session, key: Key, options: LogOptions) -> FoundLogs:
    sources = await workers(session, key, options)
    return FoundLogs(sources=sources, follow=partial(follow_job, session, key, sources, options))


async def _spot_instance_job(session: Session, key: Key, options: LogOptions) -> FoundLogs:
    pods = await replicas(session, key, options)
    return FoundLogs(sources=pods, follow=partial(follow_replicas, session, key, options))


async def _workload(session: Session, key: Key, options: LogOptions) -> FoundLogs:
    pod = await _workload_pod(session, key, waits=options.follow)
    if options.attempt is not None:
        raise UsageError(f"{key} is a GPUWorkload, which has the log of its last try alone: leave --attempt out")
    return FoundLogs(sources=[pod])


async def _pod(session: Session, key: Key, options: LogOptions) -> FoundLogs:
    pod = await session.cluster.get(PODS, key)
    if options.attempt is not None:
        raise UsageError(f"{key} is a pod, which is of one attempt: leave --attempt out, or name the job")
    return FoundLogs(sources=[pod])


# In the order in which a name alone is looked for.
FINDERS: dict[str, Callable[[Session, Key, LogOptions], Awaitable[FoundLogs]]] = {
    "TrainingJob": _training_job,
    "GPUWorkload": _workload,
    "SpotInstanceJob": _spot_instance_job,
    "Pod": _pod,
}


async def _workload_pod(session: Session, key: Key, *, waits: bool) -> Pod:
    """The newest pod of the workload; `waits` waits for a pod that may still be created."""
    while True:
        workload = await session.cluster.get(GPU_WORKLOADS, key)
        status = workload.status or GPUWorkloadStatus()
        labels = f"{WORKLOAD_LABEL}={key.name},{JOB_NAME_LABEL}={status.job_name}"
        pods: tuple[Pod, ...] = ()
        if status.job_name:
            pods = (await session.cluster.list(PODS, namespace=key.namespace, labels=labels)).items
        newest = max(pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)
        if newest is not None and (not waits or not _is_between_attempts(status)):
            return newest
        if not waits or status.phase in FINISHED_PHASES:
            raise NoLog(f"{key} has no pod: it is {_status_text(workload)}")
        await asyncio.sleep(POLL_S)


def _is_between_attempts(status: GPUWorkloadStatus) -> bool:
    return status.phase not in FINISHED_PHASES and not status.assigned_node


def _status_text(workload: GPUWorkload) -> str:
    status = workload.status or GPUWorkloadStatus()
    return ": ".join(filter(None, (status.phase or "Pending", status.message)))
