"""Stores the logs of workers that failed or are stopped, before their pods are deleted.

This is best effort: a log that can't be read in time or can't be stored delays nothing, and only the operator's log
reports the failure.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import isqrt
from typing import TypeAlias

import structlog

from holdfast.api.core.objects import ConfigMap, Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, TRAINING_JOBS
from holdfast.decisions import Finish
from holdfast.trainingjob.children import belongs_to
from holdfast.trainingjob.decide.decision import Action, StartNewAttempt
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from holdfast.trainingjob.decide.worker_logs import ATTEMPTS, LogToSave, is_outdated, log_to_save, logs_to_save
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.environment import (
    FINISHED_AT,
    MAX_LOG_BYTES,
    POD,
    WORKER_LABEL,
    is_newer,
    log_name,
    worker_log_config_map,
    worker_log_selector,
)

# For all logs together: the next attempt waits that long.
WITHIN_S = 2.0
# One read is usually enough: 64 KiB of ordinary lines, and far less than would burden the operator.
FIRST_LINES = 2000
MOST_BYTES = 16 * MAX_LOG_BYTES
# For conflicts with another writer of the same log.
WRITE_ATTEMPTS = 3

# Takes a number of lines from the end, and a limit of bytes from the start of these: a kubelet reads logs this way.
Read: TypeAlias = Callable[[int, int | None], Awaitable[bytes]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@asynccontextmanager
async def saving_worker_logs(
    cluster: Cluster, observed: TrainingJobSnapshot, action: Action, *, on_one_machine: bool
) -> AsyncIterator[None]:
    """Saves the logs concurrently with the block: the stop of workers does not wait until their logs are read."""
    if not logs_to_save(observed, action):
        yield
        return
    saving = asyncio.create_task(save_worker_logs(cluster, observed, action, on_one_machine=on_one_machine))
    try:
        yield
    finally:
        await saving


async def save_worker_logs(
    cluster: Cluster,
    observed: TrainingJobSnapshot,
    action: Action,
    *,
    on_one_machine: bool = False,
    within_s: float = WITHIN_S,
) -> None:
    """Before a broken attempt is replaced, or the job ends, and while its workers stop."""
    job, workers = observed.job, logs_to_save(observed, action)
    if not workers:
        return
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(_save(cluster, job, worker))
            if isinstance(action, StartNewAttempt | Finish) and names.attempt(job) >= ATTEMPTS:
                group.create_task(_delete_old(cluster, job, on_one_machine=on_one_machine))
    except TimeoutError:
        log.warning("not all logs kept in time", key=str(job.metadata.key), workers=len(workers), within_s=within_s)


async def save_finished_worker_log(cluster: Cluster, pod: Pod, read: Callable[[str], Awaitable[bytes]]) -> None:
    """Stores the log of a finished worker, whatever becomes of its pod. `read` returns the log of a container."""
    key, owner = names.worker_of(pod), pod.metadata.controller
    worker = log_to_save(pod)
    if key is None or owner is None or worker.index < 0 or worker.end is None:
        return  # no worker, or a worker that never ran
    number = int(pod.metadata.labels[names.ATTEMPT_LABEL])
    try:
        job = await cluster.get(TRAINING_JOBS, key)
        owner_job = await cluster.get(JOBS, Key(key.namespace, owner.name))
        if job.metadata.deletion_timestamp or not belongs_to(owner_job, job):
            return  # of an earlier job of this name, or of a job that is deleted with its logs
        await _store(cluster, job, number, worker, await read(worker.container))
    except NotFound:
        return  # the job is deleted, and its logs with it
    except ClusterError as error:
        log.warning("log not kept", key=str(worker.pod), container=worker.container, reason=str(error))


async def _save(cluster: Cluster, job: TrainingJob, worker: LogToSave) -> None:
    async def read(lines: int, limit: int | None) -> bytes:
        return await cluster.pod_log(worker.pod, container=worker.container, tail_lines=lines, limit_bytes=limit)

    number = names.attempt(job)
    try:
        stored = await _stored(cluster, job, number, worker)
        if stored is None or is_newer(stored.data, _facts(worker)):
            await _store(cluster, job, number, worker, await log_tail(read))
    except ClusterError as error:
        log.warning("log not kept", key=str(worker.pod), container=worker.container, reason=str(error))


async def _stored(cluster: Cluster, job: TrainingJob, number: int, worker: LogToSave) -> ConfigMap | None:
    with suppress(NotFound):
        return await cluster.get(CONFIG_MAPS, Key(job.metadata.namespace, log_name(job, number, worker.index)))
    return None


async def _store(cluster: Cluster, job: TrainingJob, number: int, worker: LogToSave, text: bytes) -> None:
    """Adds to the logs of the attempt's earlier pods. Not through the write tracker: no cache is to hold the log."""
    facts = _facts(worker)
    for _ in range(WRITE_ATTEMPTS):
        stored = await _stored(cluster, job, number, worker)
        if stored is not None and not (belongs_to(stored, job) and is_newer(stored.data, facts)):
            return
        body = worker_log_config_map(
            job, worker.index, text, facts, number=number, stored=stored.data if stored else None
        )
        with suppress(AlreadyExists, Conflict):  # on a single machine two writers store the same log
            if stored is None:
                await cluster.create(CONFIG_MAPS, body, namespace=job.metadata.namespace)
            else:
                # Facts of the earlier pod are removed: a merge patch retains keys that it does not name.
                data = {**dict.fromkeys(stored.data), **body["data"]}
                guard = {"resourceVersion": stored.metadata.resource_version}
                await cluster.patch(CONFIG_MAPS, stored.metadata.key, {"metadata": guard, "data": data})
            return


async def log_tail(read: Read) -> bytes:
    """The last 64 KiB: reads as many lines as hold them, and no more than one read can take."""
    lines, too_few, too_many = FIRST_LINES, 0, 0
    while True:
        text = await read(lines, MOST_BYTES)
        # A kubelet counts the pieces of a long line: fewer lines than requested may come, but not fewer than half.
        is_all = not too_many and text.count(b"\n") < lines // 2
        if len(text) >= MOST_BYTES:
            too_many = lines  # the end was cut off
        elif len(text) >= MAX_LOG_BYTES or is_all:
            return text[-MAX_LOG_BYTES:]
        else:
            too_few = lines
        if too_many - too_few == 1:  # a single line exceeds the limit
            return (await read(too_many, None))[-MAX_LOG_BYTES:]
        lines = max(too_few + 1, isqrt(max(too_few, 1) * too_many)) if too_many else 8 * lines


async def _delete_old(cluster: Cluster, job: TrainingJob, *, on_one_machine: bool) -> None:
    namespace, current = job.metadata.namespace, names.attempt(job)
    try:
        stored = (
            await cluster.list(CONFIG_MAPS, namespace=namespace, labels=worker_log_selector(job.metadata.name))
        ).items
        for config_map in stored:
            number, index = (config_map.metadata.labels.get(label, "") for label in (names.ATTEMPT_LABEL, WORKER_LABEL))
            if not belongs_to(config_map, job) or not (number.isdecimal() and index.isdecimal()):
                continue
            if is_outdated(int(number), int(index), current, on_one_host=on_one_machine):
                with suppress(NotFound, Conflict):
                    await cluster.delete(
                        CONFIG_MAPS, config_map.metadata.key, DeleteOptions(uid=config_map.metadata.uid)
                    )
    except ClusterError as error:
        log.warning("old logs not deleted", key=str(job.metadata.key), reason=str(error))


def _facts(worker: LogToSave) -> dict[str, str]:
    origin = {POD: worker.pod.name, "container": worker.container, "node": worker.node}
    end = worker.end
    if end is None:
        return origin
    return {**origin, "exitCode": str(end.exit_code), "reason": end.reason, FINISHED_AT: end.finished_at or ""}
