"""Read your writes: a reconcile waits until the caches show the writes of its last run.

A cache lags behind the cluster. Without this wait a reconcile that closely follows its own writes sees the state before
the writes, and makes its objects twice or runs into conflicts.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from holdfast.api.meta import Key, Object
from holdfast.cluster.protocol import DELETE, Body, Cluster, DeleteOptions, Resource
from holdfast.runtime.informer import Informers, Store

T = TypeVar("T", bound=Object)

# A write that no watch shows by then (a disconnected watch, an etcd restored to an older version) is no longer waited
# for: names and versions still guard against duplicates, and waiting for ever would be worse.
PATIENCE_S = 30.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class WriteTracker:
    """The writes of one controller; remembers for each key the writes that the stores do not show yet."""

    def __init__(self, cluster: Cluster, informers: Informers) -> None:
        self._cluster = cluster
        self._informers = informers
        self._unseen: dict[Key, list[Callable[[], bool]]] = {}
        self._last_write: dict[Key, float] = {}

    def for_key(self, key: Key) -> "TrackedClient":
        """A client for the writes of the reconcile of `key`."""
        return TrackedClient(self._cluster, self, key)

    def is_cache_stale(self, key: Key) -> bool:
        """Whether a store does not show a write of the reconcile of `key` yet."""
        unseen = [shows for shows in self._unseen.get(key, ()) if not shows()]
        if unseen and asyncio.get_running_loop().time() - self._last_write[key] < PATIENCE_S:
            self._unseen[key] = unseen
            return True
        if unseen:
            log.warning("own writes not seen in time, going on without them", key=str(key), writes=len(unseen))
        self._unseen.pop(key, None)
        self._last_write.pop(key, None)
        return False

    def note_write(self, key: Key, resource: Resource[T], answer: T) -> None:
        store = self._informers.find(resource)
        if store is not None:
            meta = answer.metadata
            self._track(key, partial(_has_reached, store, meta.namespace, meta.resource_version))

    def note_delete(self, key: Key, resource: Resource[T], deleted: Key, uid: str) -> None:
        store = self._informers.find(resource)
        obj = store.get(deleted) if store is not None else None
        if store is not None and obj is not None:
            self._track(key, partial(_shows_deletion, store, deleted, uid or obj.metadata.uid))

    def _track(self, key: Key, shows: Callable[[], bool]) -> None:
        self._unseen.setdefault(key, []).append(shows)
        self._last_write[key] = asyncio.get_running_loop().time()


class TrackedClient:
    """The writing half of a `Cluster`, on behalf of one key."""

    def __init__(self, cluster: Cluster, writer: WriteTracker, key: Key) -> None:
        self._cluster = cluster
        self._writer = writer
        self._key = key

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        return self._tracked(resource, await self._cluster.create(resource, body, namespace=namespace))

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        return self._tracked(resource, await self._cluster.replace(resource, key, body))

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return self._tracked(resource, await self._cluster.patch(resource, key, patch))

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return self._tracked(resource, await self._cluster.patch_status(resource, key, patch))

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        await self._cluster.delete(resource, key, options)
        self._writer.note_delete(self._key, resource, key, options.uid)

    def _tracked(self, resource: Resource[T], answer: T) -> T:
        self._writer.note_write(self._key, resource, answer)
        return answer


def _has_reached(store: Store[T], namespace: str, version: str) -> bool:
    """Versions of one resource are ordered numbers; another version, or a namespace without a watch, counts as seen."""
    seen = store.resource_version(namespace)
    return not (seen.isdecimal() and version.isdecimal()) or int(seen) >= int(version)


def _shows_deletion(store: Store[T], key: Key, uid: str) -> bool:
    obj = store.get(key)
    return obj is None or obj.metadata.uid != uid or bool(obj.metadata.deletion_timestamp)
