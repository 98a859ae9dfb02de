"""The logs of the replicas of a SpotInstanceJob."""

import asyncio
from collections.abc import Sequence

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import REPLICA_LABEL, SPOT_JOB_LABEL, SpotInstanceJob
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.cli.errors import FAILED, print_error
from holdfast.cli.logs.streams import POLL_S, LogOptions, NoLog, follow_until_replaced
from holdfast.cli.session import Session
from holdfast.cluster.resources import PODS, SPOT_INSTANCE_JOBS
from holdfast.spotinstancejob.names import replica_of
from holdfast.spotinstancejob.status import ENDS


async def replicas(session: Session, key: Key, options: LogOptions) -> list[Pod]:
    """The pods of the requested replicas. With --follow, wait for one of them: the others may take hours."""
    while True:
        job = await session.cluster.get(SPOT_INSTANCE_JOBS, key)
        newest = [await _newest_pod(session, key, number, options.attempt) for number in _requested(job, options)]
        found = [pod for pod in newest if pod is not None]
        if found:
            return found
        if options.worker >= job.spec.replicas:
            raise NoLog(f"{key} has {job.spec.replicas} replicas, 0 to {job.spec.replicas - 1}")
        if not options.follow or options.attempt is not None or _status(job).phase in ENDS:
            raise NoLog(_not_found_message(job, options))
        await asyncio.sleep(POLL_S)


async def follow_replicas(session: Session, key: Key, options: LogOptions) -> int:
    """Follow attempt after attempt of each replica until the job has ended; 0 when it has succeeded."""
    numbers = _requested(await session.cluster.get(SPOT_INSTANCE_JOBS, key), options)
    several = len(numbers) > 1
    await asyncio.gather(*(_follow_replica(session, key, number, options, several=several) for number in numbers))
    job = await session.cluster.get(SPOT_INSTANCE_JOBS, key)
    return 0 if _status(job).phase == "Succeeded" else FAILED


def _requested(job: SpotInstanceJob, options: LogOptions) -> Sequence[int]:
    return range(job.spec.replicas) if options.all else (options.worker,)


async def _follow_replica(session: Session, key: Key, number: int, options: LogOptions, *, several: bool) -> None:
    followed: Pod | None = None

    async def is_replaced() -> bool:
        newest = await _newest_pod(session, key, number)
        return newest is not None and followed is not None and newest.metadata.uid != followed.metadata.uid

    while (followed := await _next_pod(session, key, number, followed)) is not None:
        await follow_until_replaced(session, [followed], options, is_replaced, several=several)


async def _next_pod(session: Session, key: Key, number: int, followed: Pod | None) -> Pod | None:
    """The replica's next pod, or its first one; None when the job has ended."""
    is_suspended = False
    while True:
        job = await session.cluster.get(SPOT_INSTANCE_JOBS, key)
        newest = await _newest_pod(session, key, number)
        if newest is not None and followed is None:
            return newest
        if newest is not None and followed is not None and newest.metadata.uid != followed.metadata.uid:
            replica = replica_of(newest)
            print_error(f"following replica {number}, attempt {replica.attempt if replica else 0}")
            return newest
        phase = _status(job).phase
        if phase in ENDS or number >= job.spec.replicas:
            return None
        if phase == "Suspended" and not is_suspended:
            print_error(f"{key} is suspended: the log of replica {number} goes on when it is resumed")
        is_suspended = phase == "Suspended"
        await asyncio.sleep(POLL_S)


async def _newest_pod(session: Session, key: Key, number: int, attempt: int | None = None) -> Pod | None:
    """The pod of the replica's last attempt, or of the one that is asked for."""
    labels = f"{SPOT_JOB_LABEL}={key.name},{REPLICA_LABEL}={number}"
    pods = (await session.cluster.list(PODS, namespace=key.namespace, labels=labels)).items
    by_attempt = [
        (replica.attempt, pod.metadata.creation_timestamp, pod)
        for pod in pods
        if (replica := replica_of(pod)) is not None and attempt in (None, replica.attempt)
    ]
    return max(by_attempt, key=lambda each: each[:2])[2] if by_attempt else None


def _status(job: SpotInstanceJob) -> SpotInstanceJobStatus:
    return job.status or SpotInstanceJobStatus()


def _not_found_message(job: SpotInstanceJob, options: LogOptions) -> str:
    whose = "any replica" if options.all else f"replica {options.worker}"
    which = "" if options.attempt is None else f" in attempt {options.attempt}: the pods of past attempts are deleted"
    status = _status(job)
    state = ": ".join(filter(None, (status.phase or "Pending", status.message)))
    other = "" if options.all or job.spec.replicas == 1 else "; --all shows every replica that has a pod"
    return f"{job.metadata.key} has no log of {whose}{which}; it is {state}{other}"
