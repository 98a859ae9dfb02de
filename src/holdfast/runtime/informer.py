"""Informers: typed and indexed local copies of resources, which reconciles read instead of the API server."""

import asyncio
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Generic, TypeAlias, TypeVar, cast

import structlog

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import ClusterError, Expired
from holdfast.cluster.protocol import Change, Cluster, Event, Resource
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.queue import backoff_s

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


T = TypeVar("T", bound=Object)

Indexer: TypeAlias = Callable[[T], Iterable[str]]


class Store(Generic[T]):
    """Objects by key and by index. The objects are frozen: an object that was read never changes."""

    def __init__(self, indexes: Mapping[str, Indexer[T]] | None = None) -> None:
        self._objects: dict[Key, T] = {}
        self._indexers: dict[str, Indexer[T]] = {}
        self._indexes: dict[str, dict[str, dict[Key, T]]] = {}
        self._versions: dict[str, str] = {}
        for name, indexer in (indexes or {}).items():
            self.index(name, indexer)

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def list(self, namespace: str = "") -> builtins.list[T]:
        return [obj for key, obj in self._objects.items() if namespace in ("", key.namespace)]

    def by(self, index: str, value: str) -> builtins.list[T]:
        return list(self._indexes[index].get(value, {}).values())

    def keys(self, namespace: str = "") -> builtins.list[Key]:
        return [key for key in self._objects if namespace in ("", key.namespace)]

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def resource_version(self, namespace: str = "") -> str:
        """The resource version that the copy of this namespace has reached; "" when no watch covers the namespace.

        Each watch has its own version: the version of a watch over all namespaces is stored under "".
        """
        return self._versions.get("") or self._versions.get(namespace, "")

    def index(self, name: str, indexer: Indexer[T]) -> None:
        """Add an index; two users of a store may request the same index."""
        if self._indexers.setdefault(name, indexer) is not indexer:
            raise ValueError(f"the index {name!r} is there already with another meaning")
        self._indexes[name] = {}
        for key, obj in self._objects.items():
            self._add_to_index(self._indexes[name], key, obj, indexer(obj))

    def put(self, obj: T) -> T | None:
        """Store the new state of an object; returns the previous state."""
        key = obj.metadata.key
        # Every indexer runs before anything changes, so that an indexer that raises leaves the store intact.
        entries = [(self._indexes[name], tuple(indexer(obj))) for name, indexer in self._indexers.items()]
        old = self.remove(key)
        self._objects[key] = obj
        for index, values in entries:
            self._add_to_index(index, key, obj, values)
        return old

    def remove(self, key: Key) -> T | None:
        old = self._objects.pop(key, None)
        if old is not None:
            for name, indexer in self._indexers.items():
                self._remove_from_index(self._indexes[name], key, indexer(old))
        return old

    def set_resource_version(self, resource_version: str, namespace: str = "") -> None:
        """The watch of `namespace` ("" for all) has reached this version."""
        self._versions[namespace] = resource_version

    @staticmethod
    def _add_to_index(index: dict[str, dict[Key, T]], key: Key, obj: T, values: Iterable[str]) -> None:
        for value in values:
            index.setdefault(value, {})[key] = obj

    @staticmethod
    def _remove_from_index(index: dict[str, dict[Key, T]], key: Key, values: Iterable[str]) -> None:
        for value in values:
            members = index.get(value, {})
            members.pop(key, None)
            if not members:
                index.pop(value, None)


# Keeps a store equal to the cluster: one list, then a watch, for ever.


# Called with the old and the new object after the store has changed: without an old one the object was added, without
# a new one it was deleted.
Handler: TypeAlias = Callable[[T | None, T | None], None]

BASE_S = 0.8
CAP_S = 30.0


class Reflector(Generic[T]):
    """One resource of one namespace, or of all. Changes that are missed while disconnected are delivered afterwards."""

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
        """The first list. Errors are raised: at start-up a person is there to read them."""
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
                reason, before, self._error = type(error).__name__.lower(), self._error, str(error)
                if self._error != before:  # a right that is missing stays missing
                    where = {"resource": str(self._resource), "namespace": self._namespace}
                    log.warning("watch lost", **where, reason=self._error)
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
            # Deleted and created again while no watch ran: two changes, not one.
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
        """One malformed object must not block the events of other objects, nor one handler those of the next."""
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
        """A watch that delivered events is resumed at once; a watch that keeps failing backs off."""
        self._failures += 1
        if self._failures > 1 or reason not in ("ended", "expired"):
            await asyncio.sleep(backoff_s(self._failures, base_s=BASE_S, cap_s=CAP_S, random=self._random))


# One store per resource, shared by all its readers.


class Informer(Generic[T]):
    """A store, the reflectors that fill the store (one for all namespaces, or one for each), and the handlers."""

    def __init__(
        self, cluster: Cluster, resource: Resource[T], namespaces: tuple[str, ...], *, metrics: Metrics, random: Random
    ) -> None:
        self.store: Store[T] = Store()
        self.handlers: list[Handler[T]] = []
        self._resource = resource
        self._labels: str | None = None
        scopes = namespaces if resource.namespaced and namespaces else ("",)
        self.reflectors = tuple(
            Reflector(
                cluster,
                resource,
                self.store,
                handlers=self.handlers,
                metrics=metrics,
                random=random,
                namespace=namespace,
            )
            for namespace in scopes
        )

    def select(self, labels: str) -> None:
        """Store only objects with these labels; all users of the store have to agree on the labels."""
        if self._labels not in (None, labels):
            raise ValueError(f"the store of {self._resource} is used with labels {self._labels!r} and {labels!r}")
        self._labels = labels
        for reflector in self.reflectors:
            reflector.labels = labels


class Informers:
    """The informers of one operator. All are declared before the first list."""

    def __init__(self, cluster: Cluster, namespaces: tuple[str, ...], *, metrics: Metrics, random: Random) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._metrics = metrics
        self._random = random
        self._informers: dict[Resource[Object], Informer[Object]] = {}
        self._sealed = False

    def of(self, resource: Resource[T]) -> Informer[T]:
        """The informer of `resource`, made at the first request."""
        key = cast("Resource[Object]", resource)
        if key not in self._informers:
            if self._sealed:
                raise RuntimeError(f"{resource} is asked for after the start; declare its store before")
            informer = Informer(self._cluster, resource, self._namespaces, metrics=self._metrics, random=self._random)
            self._informers[key] = cast("Informer[Object]", informer)
        return cast("Informer[T]", self._informers[key])

    def store(
        self, resource: Resource[T], indexes: Mapping[str, Indexer[T]] | None = None, *, labels: str = ""
    ) -> Store[T]:
        """The shared store of `resource`, with these indexes among others; only objects that match `labels`."""
        informer = self.of(resource)
        informer.select(labels)
        for name, indexer in (indexes or {}).items():
            informer.store.index(name, indexer)
        return informer.store

    def find(self, resource: Resource[T]) -> Store[T] | None:
        """The store of `resource` if any reader declared it."""
        informer = self._informers.get(cast("Resource[Object]", resource))
        return cast("Store[T]", informer.store) if informer else None

    async def sync(self) -> None:
        """List all resources once; of several failures the failure of the first resource is raised."""
        self._sealed = True
        failures = await asyncio.gather(*(reflector.sync() for reflector in self._reflectors()), return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors():
                group.create_task(reflector.run())

    def unready_reasons(self) -> list[str]:
        """A line for each reflector that is not connected to the cluster."""
        return [reflector.unready_reason for reflector in self._reflectors() if reflector.unready_reason]

    def _reflectors(self) -> list[Reflector[Object]]:
        return [reflector for informer in self._informers.values() for reflector in informer.reflectors]
