"""The logs of the workers of a TrainingJob."""

import asyncio
from collections.abc import Iterable
from functools import partial

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cli.errors import FAILED, print_error
from holdfast.cli.logs.saved import SavedLog, find_saved_logs, list_available
from holdfast.cli.logs.streams import POLL_S, LogOptions, NoLog, Source, follow_until_replaced, have_several
from holdfast.cli.session import Session
from holdfast.cluster.resources import PODS, TRAINING_JOBS
from holdfast.pods.failure import index_of
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES
from holdfast.trainingjob.objects.names import ATTEMPT_LABEL, JOB_LABEL, attempt


async def workers(session: Session, key: Key, options: LogOptions) -> list[Source]:
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
            raise NoLog(f"{key} has {job.spec.num_workers} workers, 0 to {job.spec.num_workers - 1}")
        if not waits:
            raise NoLog(f"{_not_found_message(job, number, options)}; {list_available(saved)}")
        await asyncio.sleep(POLL_S)


def _attempt(job: TrainingJob, options: LogOptions) -> int:
    current = attempt(job)
    if options.attempt is not None and options.attempt > current:
        raise NoLog(f"{job.metadata.key} is in attempt {current}: there is no attempt {options.attempt} yet")
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


async def follow_job(session: Session, key: Key, sources: list[Source], options: LogOptions) -> int:
    """Follow attempt after attempt until the job has ended; 0 when the job has completed."""
    seen: set[str] = set()
    number = max(map(_attempt_of, sources))
    while True:
        seen |= {source.metadata.uid for source in sources if isinstance(source, Pod)}
        await follow_until_replaced(
            session,
            sources,
            options,
            partial(_has_pods_after, session, key, number),
            several=have_several(sources),
        )
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


async def _has_pods_after(session: Session, key: Key, number: int) -> bool:
    """Whether workers of a later attempt than `number` are there."""
    job = await session.cluster.get(TRAINING_JOBS, key)
    return attempt(job) > number and bool(await _pods(session, job, attempt(job)))


async def _pods(session: Session, job: TrainingJob, number: int) -> dict[int, Pod]:
    key = job.metadata.key
    labels = f"{JOB_LABEL}={key.name},{ATTEMPT_LABEL}={number}"
    return _newest((await session.cluster.list(PODS, namespace=key.namespace, labels=labels)).items)


def _attempt_of(source: Source) -> int:
    if isinstance(source, SavedLog):
        return source.attempt
    text = source.metadata.labels.get(ATTEMPT_LABEL, "")
    return int(text) if text.isdecimal() else 0
