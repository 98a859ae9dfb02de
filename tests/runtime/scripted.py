"""A cluster in memory that can be told to fail: the faults that no real server commits on demand."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import msgspec

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import AlreadyExists, Conflict, Expired, NotFound
from holdfast.cluster.protocol import DELETE, Body, Change, DeleteOptions, Event, Identity, Listing, Resource
from holdfast.cluster.resources import LEASES

T = TypeVar("T", bound=Object)

JSON = dict[str, Any]

WRITES = ("create", "replace", "patch", "patch_status", "delete")


class ScriptedCluster:
    """Objects with versions, watches that can be cut, stalled or outrun, and errors in store for each verb."""

    def __init__(self) -> None:
        self.version = 100
        self.calls: list[tuple[str, str, Key]] = []
        self.errors: dict[str, list[Exception]] = defaultdict(list)
        self.delivering = asyncio.Event()  # cleared, watches fall behind
        self.delivering.set()
        self.gate: Callable[[], None] = lambda: None  # before every write but the Lease's own
        self.reading: Callable[[], None] = lambda: None  # while an object is read
        self._objects: dict[tuple[str, Key], JSON] = {}
        self._history: list[tuple[int, str, Change, JSON]] = []
        self._forgotten = 0
        self._moved = asyncio.Event()
        self._cut: Exception | None = None
        self._cuts = 0

    def calls_of(self, *verbs: str) -> list[tuple[str, str, Key]]:
        return [call for call in self.calls if call[0] in verbs]

    def cut(self, error: Exception | None = None) -> None:
        """End all watches: quietly, or with an error."""
        self._cut = error
        self._cuts += 1
        self._wake()

    def forget_history(self) -> None:
        """Versions before this moment are no longer kept."""
        self._forgotten = self.version
        self._history.clear()

    def bookmark(self, resource: Resource[T]) -> None:
        self.version += 1
        self._note(resource, Change.BOOKMARK, {})

    # What a person with kubectl does: it is not counted among the calls.

    def put(self, resource: Resource[T], body: Body, *, namespace: str = "ns") -> T:
        """Create the object or take its place, uid and all kept."""
        obj: JSON = msgspec.to_builtins(body)
        key = Key(namespace if resource.namespaced else "", obj["metadata"]["name"])
        before = self._objects.get((str(resource), key))
        uid = before["metadata"]["uid"] if before else f"uid-{self.version + 1}"
        obj["metadata"] = {**obj["metadata"], "namespace": key.namespace, "uid": uid}
        return self._store(resource, key, obj, Change.MODIFIED if before else Change.ADDED)

    def drop(self, resource: Resource[T], key: Key) -> None:
        obj = self._objects.pop((str(resource), key))
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._note(resource, Change.DELETED, obj)

    def peek(self, resource: Resource[T], key: Key) -> JSON:
        return self._objects[str(resource), key]

    def all_of(self, resource: Resource[T]) -> list[JSON]:
        return [obj for (kind, _), obj in self._objects.items() if kind == str(resource)]

    # The protocol.

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Listing[T]:
        self._called("list", resource, Key(namespace, ""))
        await asyncio.sleep(0)
        items = tuple(
            msgspec.convert(obj, resource.model)
            for (kind, key), obj in self._objects.items()
            if kind == str(resource) and namespace in ("", key.namespace) and _selected(obj, labels)
        )
        return Listing(items, str(self.version))

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> AbstractAsyncContextManager[AsyncIterator[Event[T]]]:
        return self._watch(resource, int(resource_version), namespace, labels)

    async def get(self, resource: Resource[T], key: Key) -> T:
        self._called("get", resource, key)
        await asyncio.sleep(0)
        self.reading()
        return msgspec.convert(self._there(resource, key), resource.model)

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        obj: JSON = msgspec.to_builtins(body)
        meta = obj["metadata"]
        name = meta.get("name") or f"{meta['generateName']}{self.version + 1}"
        key = Key(namespace, name)
        self._called("create", resource, key)
        await asyncio.sleep(0)
        if (str(resource), key) in self._objects:
            raise AlreadyExists(f"create {resource} {key}: it is there already")
        return self.put(resource, {**obj, "metadata": {**meta, "name": name}}, namespace=namespace)

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        self._called("replace", resource, key)
        await asyncio.sleep(0)
        obj: JSON = msgspec.to_builtins(body)
        self._guard(resource, key, obj)
        return self.put(resource, obj, namespace=key.namespace)

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return await self._merge("patch", resource, key, patch)

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return await self._merge("patch_status", resource, key, patch)

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        self._called("delete", resource, key)
        await asyncio.sleep(0)
        self._guard(resource, key, {"metadata": {"uid": options.uid, "resourceVersion": options.resource_version}})
        self.drop(resource, key)

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes:
        raise NotImplementedError

    def follow_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError

    async def review_token(self, token: str, audience: str) -> Identity | None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def _watch(
        self, resource: Resource[T], version: int, namespace: str, labels: str
    ) -> AsyncIterator[AsyncIterator[Event[T]]]:
        self._called("watch", resource, Key(namespace, ""))
        if version < self._forgotten:
            raise Expired(f"watch {resource}: {version} is too old")
        yield self._events(resource, version, namespace, labels)

    async def _events(
        self, resource: Resource[T], version: int, namespace: str, labels: str
    ) -> AsyncIterator[Event[T]]:
        cuts = self._cuts
        while cuts == self._cuts:
            await self.delivering.wait()
            moved = self._moved
            for at, kind, change, obj in list(self._history):
                if at <= version or kind != str(resource):
                    continue
                if cuts != self._cuts or not self.delivering.is_set():
                    break
                version = at
                if change is Change.BOOKMARK:
                    yield Event(change, str(at), None)
                elif namespace in ("", obj["metadata"]["namespace"]) and _selected(obj, labels):
                    yield Event(change, str(at), msgspec.convert(obj, resource.model))
            else:
                await moved.wait()
        if self._cut:
            raise self._cut

    async def _merge(self, verb: str, resource: Resource[T], key: Key, patch: Body) -> T:
        self._called(verb, resource, key)
        await asyncio.sleep(0)
        changes: JSON = msgspec.to_builtins(patch)
        self._guard(resource, key, changes)
        merged = _merged(self._there(resource, key), changes)
        merged["metadata"] = {**merged["metadata"], "resourceVersion": str(self.version)}
        return self.put(resource, merged, namespace=key.namespace)

    def _called(self, verb: str, resource: Resource[T], key: Key) -> None:
        if verb in WRITES and resource != LEASES:
            self.gate()
        self.calls.append((verb, resource.plural, key))
        if self.errors[verb]:
            raise self.errors[verb].pop(0)

    def _there(self, resource: Resource[T], key: Key) -> JSON:
        if (str(resource), key) not in self._objects:
            raise NotFound(f"{resource} {key} is not there")
        return self._objects[str(resource), key]

    def _guard(self, resource: Resource[T], key: Key, changes: JSON) -> None:
        there = self._there(resource, key)["metadata"]
        asked = changes.get("metadata", {})
        for field in ("uid", "resourceVersion"):
            if asked.get(field) and asked[field] != there[field]:
                raise Conflict(f"{resource} {key}: another {field} is there")

    def _store(self, resource: Resource[T], key: Key, obj: JSON, change: Change) -> T:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._objects[str(resource), key] = obj
        self._note(resource, change, obj)
        return msgspec.convert(obj, resource.model)

    def _note(self, resource: Resource[T], change: Change, obj: JSON) -> None:
        self._history.append((self.version, str(resource), change, msgspec.to_builtins(obj)))
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def _merged(old: JSON, changes: JSON) -> JSON:
    """RFC 7386."""
    merged = dict(old)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = _merged(merged.get(name) or {}, value)
        else:
            merged[name] = value
    return merged


def _selected(obj: JSON, labels: str) -> bool:
    name, _, value = labels.partition("=")
    return not labels or obj["metadata"].get("labels", {}).get(name) == value
