"""Keeps a store equal to what the cluster holds: one list, then a watch, for ever."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Generic, TypeAlias, TypeVar

import structlog

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import ClusterError, Expired
from holdfast.cluster.protocol import Change, Cluster, Event, Resource
from holdfast.runtime.backoff import backoff_s
from holdfast.runtime.cache import Store
from holdfast.runtime.metrics import Metrics

T = TypeVar("T", bound=Object)

# Called after the store has taken in a change: no old one was added, no new one was deleted.
Handler: TypeAlias = Callable[[T | None, T | None], None]

BASE_S = 0.8
CAP_S = 30.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Reflector(Generic[T]):
    """One resource of one namespace, or of all. What it misses while cut off it delivers when it is back."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource[T],
        store: Store[T],
        *,
        handlers: Sequence[Handler[T]],
        metrics: Metrics,
        random: Random,
        namespace: str = "",
    ) -> None:
        self._cluster = cluster
        self._resource = resource
        self._store = store
        self._handlers = handlers
        self._metrics = metrics
        self._random = random
        self._namespace = namespace
        self.labels = ""
        self._version = ""
        self._failures = 0
        self._error = ""

    @property
    def unready_reason(self) -> str:
        """Why the store may be behind; "" while connected."""
        what = f"{self._resource} in {self._namespace}" if self._namespace else str(self._resource)
        if self._error:
            return f"{what}: {self._error}"
        return "" if self._version else f"{what}: not listed yet"

    async def sync(self) -> None:
        """The first list. It raises what goes wrong: at start-up a person is there to read it."""
        await self._list()

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                reason = "ended"
            except Expired:
                reason, self._version = "expired", ""
            except ClusterError as error:
                reason, self._error = type(error).__name__.lower(), str(error)
                log.warning("watch lost", resource=str(self._resource), namespace=self._namespace, reason=str(error))
            self._metrics.watch_restarted(str(self._resource), reason)
            await self._pause(reason)

    async def _list(self) -> None:
        listing = await self._cluster.list(self._resource, namespace=self._namespace, labels=self.labels)
        gone = set(self._store.keys(self._namespace))
        for obj in listing.items:
            gone.discard(obj.metadata.key)
            self._put(obj)
        for key in gone:
            self._remove(key)
        self._advance(listing.resource_version)
        self._error = ""

    async def _watch(self) -> None:
        watch = self._cluster.watch(
            self._resource, resource_version=self._version, namespace=self._namespace, labels=self.labels
        )
        async with watch as events:
            self._error = ""
            async for event in events:
                self._handle_event(event)
                self._failures = 0

    def _handle_event(self, event: Event[T]) -> None:
        if event.object is not None:
            if event.change is Change.DELETED:
                self._remove(event.object.metadata.key)
            else:
                self._put(event.object)
        self._advance(event.resource_version)

    def _put(self, obj: T) -> None:
        old = self._store.get(obj.metadata.key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            # Deleted and made again while nobody watched: two facts, not one change.
            self._remove(obj.metadata.key)
            old = None
        changed = old is None or old.metadata.resource_version != obj.metadata.resource_version
        if changed and self._safely(obj, partial(self._store.put, obj)):
            self._notify(obj, old, obj)

    def _remove(self, key: Key) -> None:
        old = self._store.remove(key)
        if old is not None:
            self._notify(old, old, None)

    def _notify(self, obj: T, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            self._safely(obj, partial(handler, old, new))

    def _safely(self, obj: T, step: Callable[[], object]) -> bool:
        """One strange object must not take away the news about all others, nor one handler that of the next."""
        try:
            step()
        except Exception:
            log.exception("change not taken in", resource=str(self._resource), key=str(obj.metadata.key))
            self._metrics.handler_failed(str(self._resource))
            return False
        return True

    def _advance(self, version: str) -> None:
        self._version = version
        self._store.set_resource_version(version, self._namespace)

    async def _pause(self, reason: str) -> None:
        """A stream that brought something is watched on at once; one that keeps failing is given time."""
        self._failures += 1
        if self._failures > 1 or reason not in ("ended", "expired"):
            await asyncio.sleep(backoff_s(self._failures, base_s=BASE_S, cap_s=CAP_S, random=self._random))
