"""Keeps the logs of workers that failed or are stopped, before their pods are deleted.

It is a courtesy: a log that can't be had in time, or not be kept, holds up nothing and only the operator's log tells.
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
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, TRAINING_JOBS
from holdfast.trainingjob.children import belongs_to
from holdfast.trainingjob.decide.decision import Action, Finish, StartNewAttempt
from holdfast.trainingjob.decide.snapshot import Observed
from holdfast.trainingjob.decide.worker_logs import ATTEMPTS, LogToSave, dying, is_outdated, logs_to_save
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.config import (
    FINISHED_AT,
    KEPT_BYTES,
    POD,
    WORKER_LABEL,
    is_newer,
    log_name,
    worker_log_config_map,
    worker_log_selector,
)

# For all of it: the next attempt waits so long.
WITHIN_S = 2.0
# Most often one look is enough: 64 KiB of ordinary lines, and far less than would burden the operator.
FIRST_LINES = 2000
MOST_BYTES = 16 * KEPT_BYTES
# When somebody else writes the same log at the same moment.
TRIES = 3

# So many lines from the end, and of these the first bytes: that is how a kubelet reads logs.
Read: TypeAlias = Callable[[int, int | None], Awaitable[bytes]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@asynccontextmanager
async def keeping_last_logs(
    cluster: Cluster, observed: Observed, course: Action, *, on_one_machine: bool
) -> AsyncIterator[None]:
    """Beside what is done meanwhile: workers that are to stop are not made to wait until their logs are read."""
    if not logs_to_save(observed, course):
        yield
        return
    keeping = asyncio.create_task(save_worker_logs(cluster, observed, course, on_one_machine=on_one_machine))
    try:
        yield
    finally:
        await keeping


async def save_worker_logs(
    cluster: Cluster, observed: Observed, course: Action, *, on_one_machine: bool = False, within_s: float = WITHIN_S
) -> None:
    """Before a broken attempt makes way, or the job ends, and while its workers stop."""
    job, workers = observed.job, logs_to_save(observed, course)
    if not workers:
        return
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(_keep(cluster, job, worker))
            if isinstance(course, StartNewAttempt | Finish) and names.attempt(job) >= ATTEMPTS:
                group.create_task(_drop_old(cluster, job, on_one_machine=on_one_machine))
    except TimeoutError:
        log.warning("not all logs kept in time", key=str(job.metadata.key), workers=len(workers), within_s=within_s)


async def keep_ended(cluster: Cluster, pod: Pod, read: Callable[[str], Awaitable[bytes]]) -> None:
    """The log of a worker that has ended, whatever becomes of its pod: `read` reads it, given the container."""
    key, owner = names.worker_of(pod), pod.metadata.controller
    worker = dying(pod)
    if key is None or owner is None or worker.index < 0 or worker.end is None:
        return  # no worker, or one that has never run
    number = int(pod.metadata.labels[names.ATTEMPT_LABEL])
    try:
        job = await cluster.get(TRAINING_JOBS, key)
        made_by = await cluster.get(JOBS, Key(key.namespace, owner.name))
        if job.metadata.deletion_timestamp or not belongs_to(made_by, job):
            return  # of an earlier job of this name, or of one whose logs go with it
        await _store(cluster, job, number, worker, await read(worker.container))
    except NotFound:
        return  # the job is deleted, and its logs with it
    except ClusterError as error:
        log.warning("log not kept", key=str(worker.pod), container=worker.container, reason=str(error))


async def _keep(cluster: Cluster, job: TrainingJob, worker: LogToSave) -> None:
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
    """Beside what earlier pods of the attempt wrote. Not through the writer: no cache is to hold it."""
    facts = _facts(worker)
    for _ in range(TRIES):
        stored = await _stored(cluster, job, number, worker)
        if stored is not None and not (belongs_to(stored, job) and is_newer(stored.data, facts)):
            return
        body = worker_log_config_map(
            job, worker.index, text, facts, number=number, stored=stored.data if stored else None
        )
        with suppress(AlreadyExists, Conflict):  # on one machine two write the same log
            if stored is None:
                await cluster.create(CONFIG_MAPS, body, namespace=job.metadata.namespace)
            else:
                # What is only true of the earlier pod goes: a merge keeps what is not named.
                data = {**dict.fromkeys(stored.data), **body["data"]}
                guard = {"resourceVersion": stored.metadata.resource_version}
                await cluster.patch(CONFIG_MAPS, stored.metadata.key, {"metadata": guard, "data": data})
            return


async def log_tail(read: Read) -> bytes:
    """The last 64 KiB: as many lines as hold them and no more than can be taken at once."""
    lines, too_few, too_many = FIRST_LINES, 0, 0
    while True:
        text = await read(lines, MOST_BYTES)
        # A kubelet counts the pieces of a long line: fewer lines than were asked for may come, but not half of them.
        is_all = not too_many and text.count(b"\n") < lines // 2
        if len(text) >= MOST_BYTES:
            too_many = lines  # what was cut off is the end
        elif len(text) >= KEPT_BYTES or is_all:
            return text[-KEPT_BYTES:]
        else:
            too_few = lines
        if too_many - too_few == 1:  # one line beyond all measure
            return (await read(too_many, None))[-KEPT_BYTES:]
        lines = max(too_few + 1, isqrt(max(too_few, 1) * too_many)) if too_many else 8 * lines


async def _drop_old(cluster: Cluster, job: TrainingJob, *, on_one_machine: bool) -> None:
    namespace, current = job.metadata.namespace, names.attempt(job)
    try:
        kept = (
            await cluster.list(CONFIG_MAPS, namespace=namespace, labels=worker_log_selector(job.metadata.name))
        ).items
        for each in kept:
            number, index = (each.metadata.labels.get(label, "") for label in (names.ATTEMPT_LABEL, WORKER_LABEL))
            if not belongs_to(each, job) or not (number.isdecimal() and index.isdecimal()):
                continue
            if is_outdated(int(number), int(index), current, on_one_machine=on_one_machine):
                with suppress(NotFound, Conflict):
                    await cluster.delete(CONFIG_MAPS, each.metadata.key, uid=each.metadata.uid)
    except ClusterError as error:
        log.warning("old logs not deleted", key=str(job.metadata.key), reason=str(error))


def _facts(worker: LogToSave) -> dict[str, str]:
    where = {POD: worker.pod.name, "container": worker.container, "node": worker.node}
    end = worker.end
    if end is None:
        return where
    return {**where, "exitCode": str(end.exit_code), "reason": end.reason, FINISHED_AT: end.finished_at or ""}
