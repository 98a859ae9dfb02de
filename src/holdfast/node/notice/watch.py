"""Watches the metadata server for the lifetime of the agent, and acts on a notice at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import aiohttp
import structlog
from prometheus_client import CollectorRegistry

from holdfast.cluster.errors import ClusterError, Conflict
from holdfast.cluster.protocol import Cluster
from holdfast.node.notice.clouds import find_source
from holdfast.node.notice.mark import NOTICED, WITHDRAWN, NodeMarker, ReceivedNotice, received
from holdfast.node.notice.metadata import ADDRESS, MetadataError, MetadataServer, NoticeSource, metadata_server
from holdfast.node.notice.metrics import NoticeMetrics
from holdfast.node.notice.sidecars import SidecarNotifier
from holdfast.runtime.events import EventType
from holdfast.times import format_time

# The shortest time between two questions, also to a server that does not hold them as it should.
LEAST_INTERVAL_S = 1.0
FIRST_PAUSE_S = 0.5
# A notice may last 30 s only: after a failure the server is asked again well within that.
LONGEST_PAUSE_S = 10.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NoticeWatch:
    """The notice of this node. It stands until the cloud says otherwise; a change of its time is no new notice."""

    def __init__(
        self,
        marker: NodeMarker,
        sidecars: SidecarNotifier,
        metrics: NoticeMetrics,
        *,
        now: Callable[[], datetime],
        address: str = ADDRESS,
    ) -> None:
        self._marker = marker
        self._sidecars = sidecars
        self._metrics = metrics
        self._now = now
        self._address = address
        self._current: ReceivedNotice | None = None
        self._changed = asyncio.Event()
        self._is_answered = False

    def remaining_s(self) -> float | None:
        """How long this node still has; None while no notice stands. What would take longer is not to be begun."""
        if self._current is None:
            return None
        return max(0.0, (self._current.deadline - self._now()).total_seconds())

    async def run(self) -> None:
        """Ends by itself only where no cloud is found."""
        async with metadata_server(self._address) as server:
            source = await self._find_source(server)
            if source is None:
                log.info("no metadata server of a known cloud answers: preemption notices are not watched")
                return
            log.info("watching for preemption notices", cloud=source.cloud)
            await self.follow(source)

    async def follow(self, source: NoticeSource) -> None:
        """Act on the notices of this source, without end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_forever(source))
            tasks.create_task(self._act_on_changes())

    async def _find_source(self, server: MetadataServer) -> NoticeSource | None:
        """None is certain: the Node was read, names no cloud, and no metadata server answers."""
        while True:
            provider_id, error = "", ""
            try:
                provider_id = await self._marker.provider_id()
            except ClusterError as failure:
                error = str(failure)
            source = await find_source(server, provider_id)
            if source is not None or not error:
                return source
            log.warning("the cloud of this node is not known yet", reason=error)
            await asyncio.sleep(LONGEST_PAUSE_S)

    async def _ask_forever(self, source: NoticeSource) -> None:
        clock, pause_s, last_error = asyncio.get_running_loop().time, FIRST_PAUSE_S, ""
        while True:
            asked_at_s = clock()
            try:
                notice = await source.current_notice()
            except MetadataError as error:
                self._metrics.metadata_failed(source.cloud)
                if str(error) != last_error:  # said once, however often it happens
                    last_error = str(error)
                    log.warning("preemption notices can't be read", cloud=source.cloud, reason=last_error)
                await asyncio.sleep(error.retry_after_s if error.retry_after_s is not None else pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            if last_error:
                log.info("preemption notices can be read again", cloud=source.cloud)
            pause_s, last_error = FIRST_PAUSE_S, ""
            self._take(received(notice, self._now(), source.notice_s) if notice is not None else None)
            await asyncio.sleep(max(source.interval_s, asked_at_s + LEAST_INTERVAL_S - clock()))

    def _take(self, notice: ReceivedNotice | None) -> None:
        is_first, self._is_answered = not self._is_answered, True
        if not is_first and (notice is None) == (self._current is None):
            return
        self._current = notice
        if notice is not None:
            self._metrics.noticed(notice.notice.cloud)
            log.warning("preemption notice", cloud=notice.notice.cloud, deadline=format_time(notice.deadline))
        self._changed.set()

    async def _act_on_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._current is None:
                await self._until_done(self._withdraw)
            else:
                await self._pass_on(self._current)

    async def _pass_on(self, notice: ReceivedNotice) -> None:
        async def read_recorded() -> None:
            nonlocal notice
            notice = await self._marker.as_recorded(notice)
            if not self._changed.is_set():
                self._current = notice

        # An agent that died after the notice has left its times on the Node.
        await self._until_done(read_recorded)
        async with asyncio.TaskGroup() as steps:
            # A pod that does not answer delays nothing else.
            steps.create_task(self._until_done(lambda: self._sidecars.ask_all(notice.deadline.timestamp())))
            await self._until_done(lambda: self._marker.mark(notice))
            await self._until_done(lambda: self._record(notice))

    async def _record(self, notice: ReceivedNotice) -> None:
        message = f"{notice.text}: no new pod comes here, and its trainings are asked to save"
        await self._marker.record(EventType.WARNING, NOTICED, message, notice.at)

    async def _withdraw(self) -> None:
        at = self._now()
        if await self._marker.clear(at):
            log.info("no preemption notice stands any more: the mark of the node is removed")
            message = "the cloud does not take this node back: new pods may come here"
            await self._marker.record(EventType.NORMAL, WITHDRAWN, message, at)

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        """Try until it succeeds, or until the notice has changed: then something else is to be done."""
        pause_s, last_error = FIRST_PAUSE_S, ""
        while not self._changed.is_set():
            try:
                await step()
                return
            except Conflict:
                await asyncio.sleep(0)  # another writer of the Node was faster
            except ClusterError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("a preemption notice can't be passed on yet", reason=last_error)
                await asyncio.sleep(error.retry_after_s if error.retry_after_s is not None else pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


@asynccontextmanager
async def watching_notices(
    cluster: Cluster, node_name: str, *, registry: CollectorRegistry, now: Callable[[], datetime], address: str
) -> AsyncIterator[NoticeWatch]:
    """The watch of an agent's own node inside the block."""
    metrics = NoticeMetrics(registry)
    async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
        marker = NodeMarker(cluster, node_name, instance=f"holdfast-node-{node_name}")
        sidecars = SidecarNotifier(cluster, node_name, session, on_call=metrics.called)
        watch = NoticeWatch(marker, sidecars, metrics, now=now, address=address)
        task = asyncio.create_task(watch.run(), name="preemption notices")
        task.add_done_callback(_log_failure)
        try:
            yield watch
        finally:
            task.cancel()
            await asyncio.wait([task])


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("preemption notices are no longer watched", exc_info=error)
