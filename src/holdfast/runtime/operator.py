"""The operator: starts its parts in order and stops them in order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TypeVar

import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry

from holdfast.api.meta import Object
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.runtime.controller import Controller, ControllerWorkers
from holdfast.runtime.events import Recorder
from holdfast.runtime.http import health_app, metrics_app, serve_app
from holdfast.runtime.informer import Handler, Indexer, Informers, Reflector, Store
from holdfast.runtime.leader import Elector
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker

T = TypeVar("T", bound=Object)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class OperatorSettings(Struct, frozen=True, kw_only=True):
    """How an operator runs. No namespaces means all; a port of None is not served."""

    namespaces: tuple[str, ...] = ()
    workers: int = 10
    resync_s: float = 300.0
    # Together less than the 30 s grace period of a pod: for running reconciles, and for unwritten Events.
    grace_s: float = 20.0
    flush_s: float = 5.0
    host: str | None = None
    health_port: int | None = None
    metrics_port: int | None = None


SETTINGS = OperatorSettings()


class Operator:
    """Shared stores, controllers, and the Lease that decides whether they act.

    `cluster` blocks writes unless `elector` leads; without an elector this operator always acts. The caller opens and
    closes the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        identity: str,
        now: Now,
        random: Random,
        metrics: Metrics,
        elector: Elector | None = None,
        settings: OperatorSettings = SETTINGS,
    ) -> None:
        self._cluster = cluster
        self._random = random
        self._metrics = metrics
        self._elector = elector
        self._settings = settings
        self._informers = Informers(cluster, settings.namespaces, metrics=metrics, random=random)
        self._controllers: list[ControllerWorkers] = []
        self._leader_tasks: list[Callable[[], Coroutine[None, None, None]]] = []
        self._stop = asyncio.Event()
        self._is_acting = False
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self.health_port: int | None = None
        self.metrics_port: int | None = None
        self.recorder = Recorder(cluster, instance=identity, now=now, metrics=metrics)

    def store(
        self, resource: Resource[T], indexes: Mapping[str, Indexer[T]] | None = None, *, labels: str = ""
    ) -> Store[T]:
        """The shared store of `resource`, kept equal to the cluster while the operator runs.

        With `labels` the store holds only matching objects; an object that a reconcile writes has to match as well, or
        the store never shows the write.
        """
        return self._informers.store(resource, indexes, labels=labels)

    def shown(self, objects: Callable[[], Iterable[T]]) -> Callable[[], Iterable[T]]:
        """The objects for gauges. None on a standby, which has the same in its stores: sums over replicas are right."""
        return lambda: objects() if self._is_acting else ()

    def reflector(self, resource: Resource[T], handler: Handler[T], *, namespace: str) -> Reflector[T]:
        """Follows one namespace, whichever this operator looks after, and tells the handler of each change.

        The caller runs it. It is no part of the start, and of readiness: the operator can do without.
        """
        return Reflector(
            self._cluster,
            resource,
            Store(),
            handlers=(handler,),
            metrics=self._metrics,
            random=self._random,
            namespace=namespace,
        )

    @property
    def renewed_s(self) -> float | None:
        """When the API server last took a write of this operator for certain; None without leader election."""
        return self._elector.renewed_s if self._elector else None

    def writer(self) -> WriteTracker:
        """The write tracker for one controller and its reconciler."""
        return WriteTracker(self._cluster, self._informers)

    def add(self, controller: Controller[T]) -> None:
        self._controllers.append(
            ControllerWorkers(controller, self._informers, metrics=self._metrics, random=self._random)
        )

    def add_leader_task(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """What runs beside the controllers while this operator leads; it must not end by itself."""
        self._leader_tasks.append(work)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry to which controllers add their metrics."""
        return self._metrics.registry

    def stop(self) -> None:
        self._stop.set()

    def unready_reasons(self) -> list[str]:
        """Why the operator is not ready, a line each. A standby with its stores up to date is ready."""
        return ["stopping"] if self._stop.is_set() else self._informers.unready_reasons()

    async def run(self) -> None:
        """Work until `stop`.

        Raises the error that prevents the start (the cluster's answer to the first list or to the first attempt to take
        the Lease), `LeaseLost`, or the error that crashed a part: the operator never goes on without a part.
        """
        async with self._serving():
            try:
                async with asyncio.TaskGroup() as group:
                    self._begin(group, "events", self.recorder.run())
                    self._begin(group, "start", self._start(group))
                    await self._stop.wait()
                    await self._shut_down()
            except BaseExceptionGroup as crash:
                raise _cause(crash) from None
            finally:
                if self._elector:
                    await self._elector.release()

    async def _start(self, group: asyncio.TaskGroup) -> None:
        await self._informers.sync()
        self._begin(group, "watches", self._informers.run())
        if self._elector:  # a standby waits here, with its stores up to date
            await self._elector.acquire()
            self._begin(group, "lease", self._elector.hold())
        else:
            self._metrics.leading(True)
        self._is_acting = True
        for work in self._leader_tasks:
            self._begin(group, "leader tasks", work())
        for workers in self._controllers:
            self._begin(group, "workers", workers.run(self._settings.workers))
            self._begin(group, "resync", workers.resync(self._settings.resync_s))

    def _begin(self, group: asyncio.TaskGroup, part: str, work: Coroutine[None, None, None]) -> None:
        self._tasks.setdefault(part, []).append(group.create_task(work, name=part))

    async def _shut_down(self) -> None:
        log.info("stopping", grace_s=self._settings.grace_s)
        for part in ("start", "watches", "resync", "leader tasks"):
            await self._end(part)
        for workers in self._controllers:
            workers.queue.shut_down()
        await self._end("workers", within_s=self._settings.grace_s)
        self.recorder.stop()
        await self._end("events", within_s=self._settings.flush_s)
        await self._end("lease")

    async def _end(self, part: str, *, within_s: float = 0.0) -> None:
        """Give a part some time to end by itself, then cancel the part."""
        tasks = self._tasks.get(part)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=within_s)
            if late and within_s:
                log.warning("not ended in time, cancelled", part=part, after_s=within_s)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        settings = self._settings
        async with AsyncExitStack() as stack:
            if settings.health_port is not None:
                app = health_app(live=self._ended_tasks, ready=self.unready_reasons)
                serving = serve_app(app, host=settings.host, port=settings.health_port, option="--health-port")
                self.health_port = await stack.enter_async_context(serving)
            if settings.metrics_port is not None:
                app = metrics_app(self._metrics.registry)
                serving = serve_app(app, host=settings.host, port=settings.metrics_port, option="--metrics-port")
                self.metrics_port = await stack.enter_async_context(serving)
            yield

    def _ended_tasks(self) -> list[str]:
        if self._stop.is_set():
            return []
        parts = (part for part, tasks in self._tasks.items() if any(task.done() for task in tasks))
        return [f"{part}: ended" for part in parts if part != "start"]


def _cause(crash: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure inside; the others are logged."""
    first, *others = _leaves(crash)
    for other in others:
        log.error("crashed too", reason=repr(other))
    return first


def _leaves(crash: BaseException) -> Iterator[BaseException]:
    if isinstance(crash, BaseExceptionGroup):
        for inner in crash.exceptions:
            yield from _leaves(inner)
    else:
        yield crash
