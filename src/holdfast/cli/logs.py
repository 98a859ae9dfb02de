"""`holdfast logs`: the logs of a pod, of a GPUWorkload, or of the workers of a TrainingJob."""

import asyncio
import sys
from collections.abc import Iterable
from contextlib import aclosing, suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias

from msgspec import Struct, structs

from holdfast.api.core.objects import ConfigMap, ContainerStateTerminated, Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cli.errors import FAILED, UsageError, print_error
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import Session
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS, GPU_WORKLOADS, PODS, TRAINING_JOBS
from holdfast.errors import HoldfastError
from holdfast.gpuworkload.job import WORKLOAD_LABEL
from holdfast.gpuworkload.snapshot import FINISHED_PHASES
from holdfast.local.kubelet.logs import tail_log as last_lines
from holdfast.pods.failure import exit_text, index_of
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES
from holdfast.trainingjob.objects.environment import EARLIER, LOG, POD, WORKER_LABEL, worker_log_selector
from holdfast.trainingjob.objects.job import TRAINER
from holdfast.trainingjob.objects.names import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL, JOB_NAME_LABEL, attempt


class SavedLog(Struct, frozen=True, kw_only=True):
    """The log of a worker whose pod is gone, as the operator saved it."""

    attempt: int
    index: int
    text: bytes
    earlier: bytes = b""
    """The output of earlier pods of the worker in the same attempt."""
    pod: str = ""
    container: str
    end: str
    """How and where the worker ended, as far as known."""

    def __str__(self) -> str:
        who = f"worker {self.index} of attempt {self.attempt}"
        if self.container != TRAINER:
            who = f"container {self.container} of {who}"
        return f"{who}{self.end}: the end of its log, as it was kept"

    def before(self, pod: str) -> "SavedLog | None":
        """The output of earlier pods of the same worker and attempt."""
        text = self.earlier + (self.text if self.pod and self.pod != pod else b"")
        return structs.replace(self, earlier=b"", text=text) if text else None

    def is_of(self, container: str) -> bool:
        """Whether the log is of the requested container; "" matches every container."""
        return container in ("", self.container)


async def find_saved_logs(cluster: Cluster, job: TrainingJob) -> list[SavedLog]:
    """All saved logs of the job, in the order of attempts and workers."""
    metadata = job.metadata
    found = (
        await cluster.list(CONFIG_MAPS, namespace=metadata.namespace, labels=worker_log_selector(metadata.name))
    ).items
    own = [each for each in found if each.metadata.controller and each.metadata.controller.uid == metadata.uid]
    return sorted(map(_saved_log, own), key=attrgetter("attempt", "index"))


def list_available(saved: Iterable[SavedLog]) -> str:
    """A list of the available logs, for the error about a missing log."""
    attempts = []
    for number, each in groupby(saved, attrgetter("attempt")):
        indexes = [str(log.index) for log in each]
        attempts.append(f"attempt {number} (worker{'s' if len(indexes) > 1 else ''} {', '.join(indexes)})")
    return f"logs are kept of {', '.join(attempts)}" if attempts else "no log of a failed worker is kept"


def _saved_log(config_map: ConfigMap) -> SavedLog:
    labels, data = config_map.metadata.labels, config_map.data
    code = data.get("exitCode", "")
    end = f" {exit_text(ContainerStateTerminated(exit_code=int(code), reason=data.get('reason', '')))}" if code else ""
    end += f" on {data['node']}" if "node" in data else ""
    end += f" at {data['finishedAt']}" if "finishedAt" in data else ""
    return SavedLog(
        attempt=_number(labels.get(ATTEMPT_LABEL, "")),
        index=_number(labels.get(WORKER_LABEL, "")),
        text=data.get(LOG, "").encode(),
        earlier=data.get(EARLIER, "").encode(),
        pod=data.get(POD, ""),
        container=data.get("container", ""),
        end=end,
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


# The pod of the current or last attempt of a GPUWorkload.

POLL_S = 0.5


class PodNotFound(HoldfastError):
    """The workload has no pod (yet)."""


async def workload_pod(cluster: Cluster, key: Key, *, waits: bool) -> Pod:
    """The newest pod of the workload; `waits` waits for a pod that may still be created."""
    while True:
        workload = await cluster.get(GPU_WORKLOADS, key)
        status = workload.status or GPUWorkloadStatus()
        labels = f"{WORKLOAD_LABEL}={key.name},{JOB_NAME_LABEL}={status.job_name}"
        pods = (await cluster.list(PODS, namespace=key.namespace, labels=labels)).items if status.job_name else ()
        newest = max(pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)
        if newest is not None and (not waits or not _is_between_attempts(status)):
            return newest
        if not waits or status.phase in FINISHED_PHASES:
            raise PodNotFound(f"{key} has no pod: it is {_status_text(workload)}")
        await asyncio.sleep(POLL_S)


def _is_between_attempts(status: GPUWorkloadStatus) -> bool:
    return status.phase not in FINISHED_PHASES and not status.assigned_node


def _status_text(workload: GPUWorkload) -> str:
    status = workload.status or GPUWorkloadStatus()
    return ": ".join(filter(None, (status.phase or "Pending", status.message)))


DRAIN_S = 2.0
# A longer line is printed in pieces: a worker may write without ever ending a line.
LONGEST_LINE = 2**20

Source: TypeAlias = Pod | SavedLog


class NoWorker(HoldfastError):
    """The job has no such worker (yet)."""


class LogOptions(Struct, frozen=True, kw_only=True):
    follow: bool
    tail: int | None
    attempt: int | None
    worker: int
    all: bool
    container: str


async def print_logs(session: Session, what: str, options: LogOptions) -> int:
    sources, job = await _sources(session, what, options)
    several = _several(sources)
    if options.follow:
        if job is not None and options.attempt is None:
            return await _follow_job(session, job, sources, options)
        await asyncio.gather(*(_follow(session, source, options, several=several) for source in sources))
        return 0
    for source in sources:
        _write(source, await _read_log(session, source, options), several=several)
    return 0


async def _sources(session: Session, what: str, options: LogOptions) -> tuple[list[Source], Key | None]:
    """The sources of the logs, and the key of their TrainingJob if a TrainingJob was requested."""
    word, slash, name = what.rpartition("/")
    key = Key(session.namespace, name)
    kind = find_kind(word).resource.kind if slash else ""
    if kind == "TrainingJob":
        return await _workers(session, key, options), key
    if kind == "GPUWorkload":
        return [await _workload_pod(session, key, options)], None
    if kind == "Pod":
        return [await _pod(session, key, options)], None
    if kind:
        raise UsageError(f"{what} has no log of its own: write tj/NAME, gpuw/NAME or pod/NAME")
    with suppress(NotFound):
        return await _workers(session, key, options), key
    for find in (_workload_pod, _pod):
        with suppress(NotFound):
            return [await find(session, key, options)], None
    listing = "`holdfast get tj,gpuw,pods` lists them"
    raise NotFound(f"{key.namespace} has no TrainingJob, GPUWorkload or pod {name!r}: {listing}")


async def _workload_pod(session: Session, key: Key, options: LogOptions) -> Pod:
    pod = await workload_pod(session.cluster, key, waits=options.follow)
    if options.attempt is not None:
        raise UsageError(f"{key} is a GPUWorkload, which has the log of its last try alone: leave --attempt out")
    return pod


async def _pod(session: Session, key: Key, options: LogOptions) -> Pod:
    pod = await session.cluster.get(PODS, key)
    if options.attempt is not None:
        raise UsageError(f"{key} is a pod, which is of one attempt: leave --attempt out, or name the TrainingJob")
    return pod


async def _workers(session: Session, key: Key, options: LogOptions) -> list[Source]:
    """The requested workers of one attempt: pods or saved logs. With --follow, wait for missing pods."""
    while True:
        job = await session.cluster.get(TRAINING_JOBS, key)
        number = _attempt(job, options)
        pods = await _pods(session, job, number)
        complete = len(pods) >= job.spec.num_workers if options.all else options.worker in pods
        may_come = number == attempt(job) and _state(job) not in FINISHED_STATES
        waits = options.follow and may_come and not complete
        saved = [] if waits or (complete and options.attempt is None) else await find_saved_logs(session.cluster, job)
        chosen = _chosen(pods, (each for each in saved if each.attempt == number), options)
        if chosen and not waits:
            return chosen
        if may_come and options.worker >= job.spec.num_workers:
            raise NoWorker(f"{key} has {job.spec.num_workers} workers, 0 to {job.spec.num_workers - 1}")
        if not waits:
            raise NoWorker(f"{_not_found_message(job, number, options)}; {list_available(saved)}")
        await asyncio.sleep(POLL_S)


def _attempt(job: TrainingJob, options: LogOptions) -> int:
    current = attempt(job)
    if options.attempt is not None and options.attempt > current:
        raise NoWorker(f"{job.metadata.key} is in attempt {current}: there is no attempt {options.attempt} yet")
    return current if options.attempt is None else options.attempt


def _chosen(pods: dict[int, Pod], saved: Iterable[SavedLog], options: LogOptions) -> list[Source]:
    """An existing pod has more than its saved log. Output of earlier pods is included with --attempt."""
    gone = {each.index: each for each in saved if each.is_of(options.container)}
    chosen: list[Source] = []
    for index in sorted({*gone, *pods}):
        if not options.all and index != options.worker:
            continue
        pod, stored = pods.get(index), gone.get(index)
        if stored is not None and pod is not None:
            stored = stored.before(pod.metadata.name) if options.attempt is not None else None
        chosen += [source for source in (stored, pod) if source is not None]
    return chosen


def _several(sources: list[Source]) -> bool:
    """Whether the sources are of more than one worker."""
    return len({_worker_of(source) for source in sources}) > 1


def _worker_of(source: Source) -> str:
    return str(source.index) if isinstance(source, SavedLog) else source.metadata.labels.get(INDEX_LABEL, "?")


def _not_found_message(job: TrainingJob, number: int, options: LogOptions) -> str:
    whose = "any worker" if options.all else f"worker {options.worker}"
    prefix = f"{job.metadata.key} has no log of {whose} in attempt {number}"
    if number < attempt(job):
        return f"{prefix}, whose pods are gone"
    message = (job.status and job.status.message) or "its pods are not there"
    return f"{prefix}: it is {_state(job)}: {message}"


def _state(job: TrainingJob) -> str:
    return (job.status.state if job.status else None) or "Pending"


def _newest(pods: tuple[Pod, ...]) -> dict[int, Pod]:
    """The last pod of each worker, by worker index."""
    ordered = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)
    numbered = {index: pod for pod in ordered if (index := index_of(pod)) >= 0}
    return dict(sorted(numbered.items()))


async def _read_log(session: Session, source: Source, options: LogOptions) -> bytes:
    if isinstance(source, SavedLog):
        print_error(str(source))
        text = source.earlier + source.text
        return text if options.tail is None else last_lines(text, options.tail)
    try:
        return await session.cluster.pod_log(source.metadata.key, container=options.container, tail_lines=options.tail)
    except ClusterError:
        # The pod object exists, but its node is lost or has removed the logs.
        saved = await _saved_log_of(session, source, options)
        if saved is None:
            raise
        return await _read_log(session, saved, options)


async def _saved_log_of(session: Session, pod: Pod, options: LogOptions) -> SavedLog | None:
    labels = pod.metadata.labels
    with suppress(ClusterError):
        job = await session.cluster.get(TRAINING_JOBS, Key(pod.metadata.namespace, labels.get(JOB_LABEL, "")))
        same = (labels.get(ATTEMPT_LABEL), labels.get(INDEX_LABEL))
        for each in await find_saved_logs(session.cluster, job):
            if (str(each.attempt), str(each.index)) == same and each.is_of(options.container):
                return each
    return None


async def _follow_job(session: Session, key: Key, sources: list[Source], options: LogOptions) -> int:
    """Follow attempt after attempt until the job has ended; 0 when the job has completed."""
    seen: set[str] = set()
    number = max(map(_attempt_of, sources))
    while True:
        seen |= {source.metadata.uid for source in sources if isinstance(source, Pod)}
        await _follow_attempt(session, key, number, sources, options)
        sources, number, state = await _next_sources(session, key, number, seen, options)
        if not sources:
            return 0 if state == "Completed" else FAILED


async def _next_sources(
    session: Session, key: Key, number: int, seen: set[str], options: LogOptions
) -> tuple[list[Source], int, str]:
    """The next sources after attempt `number`, their attempt, and the job state; no sources when the job has ended."""
    followed, is_suspended = number, False
    while True:
        job = await session.cluster.get(TRAINING_JOBS, key)
        current = attempt(job)
        if current > number:
            # The attempt may have begun and ended between two polls.
            if number > followed and (missed := await _missed(session, job, number, options)):
                return missed, number, _state(job)
            print_error(_ending(job, number))
            number += 1
            continue
        if _state(job) == "Suspended" and not is_suspended:
            print_error(f"{key} is suspended: its log goes on when it is resumed")
        is_suspended = _state(job) == "Suspended"
        pods = await _pods(session, job, current)
        fresh = {index: pod for index, pod in pods.items() if pod.metadata.uid not in seen}
        has_ended = _state(job) in FINISHED_STATES
        chosen = _chosen(fresh, (), options)
        if chosen and (has_ended or not options.all or len(pods) >= job.spec.num_workers):
            print_error(f"following attempt {current}")
            return chosen, current, _state(job)
        if has_ended:
            missed = await _missed(session, job, current, options) if current > followed else []
            return missed, current, _state(job)
        await asyncio.sleep(POLL_S)


def _ending(job: TrainingJob, number: int) -> str:
    status = job.status or TrainingJobStatus()
    # The status describes only the last attempt.
    why = (status.failure_reason or status.message) if number == attempt(job) - 1 else ""
    return f"attempt {number} has ended: {why or 'a new one follows'}"


async def _missed(session: Session, job: TrainingJob, number: int, options: LogOptions) -> list[Source]:
    """The sources of an attempt that was not followed."""
    saved = await find_saved_logs(session.cluster, job)
    return _chosen(await _pods(session, job, number), (each for each in saved if each.attempt == number), options)


async def _follow_attempt(session: Session, key: Key, number: int, sources: list[Source], options: LogOptions) -> None:
    """Follow an attempt until its workers have ended or a later attempt runs: a log on a lost node never ends."""
    several = _several(sources)
    streams = asyncio.gather(*(_follow_unless_deleted(session, source, options, several=several) for source in sources))
    replaced = asyncio.create_task(_wait_replaced(session, key, number))
    try:
        awaited: set[asyncio.Future[Any]] = {streams, replaced}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if streams.done():
            await streams
    finally:
        streams.cancel()
        replaced.cancel()
        await asyncio.gather(streams, replaced, return_exceptions=True)


async def _follow_unless_deleted(session: Session, source: Source, options: LogOptions, *, several: bool) -> None:
    with suppress(NotFound):  # the pod was deleted meanwhile
        await _follow(session, source, options, several=several)


async def _wait_replaced(session: Session, key: Key, number: int) -> None:
    """Wait until workers of a later attempt run, plus a delay for the last output of the old workers."""
    while True:
        with suppress(ClusterError):
            job = await session.cluster.get(TRAINING_JOBS, key)
            if attempt(job) > number and await _pods(session, job, attempt(job)):
                break
        await asyncio.sleep(4 * POLL_S)
    await asyncio.sleep(DRAIN_S)


async def _pods(session: Session, job: TrainingJob, number: int) -> dict[int, Pod]:
    key = job.metadata.key
    labels = f"{JOB_LABEL}={key.name},{ATTEMPT_LABEL}={number}"
    return _newest((await session.cluster.list(PODS, namespace=key.namespace, labels=labels)).items)


def _attempt_of(source: Source) -> int:
    if isinstance(source, SavedLog):
        return source.attempt
    text = source.metadata.labels.get(ATTEMPT_LABEL, "")
    return int(text) if text.isdecimal() else 0


async def _follow(session: Session, pod: Source, options: LogOptions, *, several: bool) -> None:
    if isinstance(pod, SavedLog):
        _write(pod, await _read_log(session, pod, options), several=several)
        return
    key = pod.metadata.key
    await _wait_started(session, key)
    rest = b""
    chunks = session.cluster.follow_log(key, container=options.container, tail_lines=options.tail)
    async with aclosing(chunks):
        async for chunk in chunks:
            # Whole lines for several workers; immediate output for a single worker.
            complete, end, rest = (rest + chunk).rpartition(b"\n") if several else (chunk, b"", b"")
            if len(rest) > LONGEST_LINE:
                end, rest = end + rest, b""
            _write(pod, complete + end, several=several)
    _write(pod, rest, several=several)


async def _wait_started(session: Session, key: Key) -> None:
    while True:
        pod = await session.cluster.get(PODS, key)
        if pod.status.phase != "Pending":
            return
        await asyncio.sleep(POLL_S)


def _write(source: Source, text: bytes, *, several: bool) -> None:
    if several:
        text = b"".join(f"[{_worker_of(source)}] ".encode() + line + b"\n" for line in text.splitlines())
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
