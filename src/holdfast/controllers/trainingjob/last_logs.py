"""Keeps the logs of workers that failed, before their pods are deleted.

It is a courtesy: a log that can't be had in time, or not be kept, holds up nothing and only the operator's log tells.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import isqrt
from typing import TypeAlias

import structlog

from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS
from holdfast.controllers.trainingjob.children import belongs_to
from holdfast.planning.trainingjob.course import Course
from holdfast.planning.trainingjob.last_logs import ATTEMPTS, Dying, is_outdated, whose_logs
from holdfast.planning.trainingjob.observed import Observed
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.last_logs import KEPT_BYTES, kept_logs, last_log

# For all of it: the next attempt waits so long.
WITHIN_S = 2.0
# Most often one look is enough: 64 KiB of ordinary lines, and far less than would burden the operator.
FIRST_LINES = 2000
MOST_BYTES = 16 * KEPT_BYTES

# So many lines from the end, and of these the first bytes: that is how a kubelet reads logs.
Read: TypeAlias = Callable[[int, int | None], Awaitable[bytes]]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


async def keep_last_logs(cluster: Cluster, observed: Observed, course: Course, *, within_s: float = WITHIN_S) -> None:
    """Before a broken attempt makes way, or the job ends as failed; for any other course nothing is done."""
    job, dying = observed.job, whose_logs(observed, course)
    if not dying:
        return
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            for worker in dying:
                group.create_task(_keep(cluster, job, worker))
            if names.attempt(job) >= ATTEMPTS:
                group.create_task(_drop_old(cluster, job))
    except TimeoutError:
        log.warning("not all logs kept in time", key=str(job.metadata.key), workers=len(dying), within_s=within_s)


async def _keep(cluster: Cluster, job: TrainingJob, worker: Dying) -> None:
    async def read(lines: int, limit: int | None) -> bytes:
        return await cluster.pod_log(worker.pod, container=worker.container, tail_lines=lines, limit_bytes=limit)

    try:
        body = last_log(job, worker.index, await end_of(read), _facts(worker))
        # Not through the writer: it would wait until a cache shows what no cache is to hold.
        await cluster.create(CONFIG_MAPS, body, namespace=job.metadata.namespace)
    except AlreadyExists:
        return  # kept the last time; the status was not written then
    except ClusterError as error:
        log.warning("log not kept", key=str(worker.pod), container=worker.container, reason=str(error))


async def end_of(read: Read) -> bytes:
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


async def _drop_old(cluster: Cluster, job: TrainingJob) -> None:
    namespace, current = job.metadata.namespace, names.attempt(job)
    try:
        kept = (await cluster.list(CONFIG_MAPS, namespace=namespace, labels=kept_logs(job.metadata.name))).items
        for each in kept:
            number = each.metadata.labels.get(names.ATTEMPT_LABEL, "")
            if belongs_to(each, job) and number.isdecimal() and is_outdated(int(number), current):
                with suppress(NotFound, Conflict):
                    await cluster.delete(CONFIG_MAPS, each.metadata.key, uid=each.metadata.uid)
    except ClusterError as error:
        log.warning("old logs not deleted", key=str(job.metadata.key), reason=str(error))


def _facts(worker: Dying) -> dict[str, str]:
    where = {"pod": worker.pod.name, "container": worker.container, "node": worker.node}
    end = worker.end
    if end is None:
        return where
    return {**where, "exitCode": str(end.exit_code), "reason": end.reason, "finishedAt": end.finished_at or ""}
