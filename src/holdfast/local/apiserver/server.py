"""The cluster protocol, implemented in this process on one database file."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from holdfast.api.kinds import KINDS
from holdfast.api.meta import Key, Object
from holdfast.api.schema.crd import crd_manifest
from holdfast.cluster.errors import AlreadyExists, BadRequest, ClusterError, NotFound, Undecodable
from holdfast.cluster.protocol import DELETE, JSON, Body, Change, DeleteOptions, Event, Identity, Listing, Resource
from holdfast.cluster.resources import NAMESPACES, PRIORITY_CLASSES, decoder_for
from holdfast.local.apiserver.builtin.pods import bound
from holdfast.local.apiserver.catalog import DEFINITIONS, Catalog
from holdfast.local.apiserver.garbage_collector import GarbageCollector, expire_events
from holdfast.local.apiserver.kinds import ServedKind, not_found
from holdfast.local.apiserver.objects import ObjectRef, ObjectTable, WatchCache
from holdfast.local.apiserver.selectors import WatchFilter
from holdfast.local.apiserver.storage import Storage, StoredObject, StoredWrite
from holdfast.local.apiserver.writes import ObjectWriter
from holdfast.times import format_time

# Tokens of pods: random strings that only this process can verify, and that expire with their pod.


class _Issued(Struct, frozen=True):
    pod: Key
    uid: str
    account: str
    audience: str
    node: str


class Tokens:
    """`uid_of` returns the uid of the pod that has a name now; "" when there is none."""

    def __init__(self, uid_of: Callable[[Key], str]) -> None:
        self._uid_of = uid_of
        self._issued: dict[bytes, _Issued] = {}

    def issue(self, pod: Key, uid: str, account: str, audience: str, node: str) -> str:
        self._issued = {digest: each for digest, each in self._issued.items() if self._is_valid(each)}
        token = secrets.token_urlsafe(32)
        self._issued[_digest(token)] = _Issued(pod, uid, account, audience, node)
        return token

    def review(self, token: str, audience: str) -> Identity | None:
        issued = self._issued.get(_digest(token))
        if issued is None or issued.audience != audience or not self._is_valid(issued):
            return None
        return Identity(
            username=f"system:serviceaccount:{issued.pod.namespace}:{issued.account}",
            namespace=issued.pod.namespace,
            service_account=issued.account,
            pod_name=issued.pod.name,
            pod_uid=issued.uid,
            node_name=issued.node,
        )

    def _is_valid(self, issued: _Issued) -> bool:
        return self._uid_of(issued.pod) == issued.uid


def _digest(token: str) -> bytes:
    """A lookup by digest prevents timing attacks, which could guess a token piece by piece."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


T = TypeVar("T", bound=Object)
R = TypeVar("R")

PodLogs = Callable[[Key, str, int | None, int | None], Awaitable[bytes]]
FollowLogs = Callable[[Key, str, int | None], AsyncIterator[bytes]]

WINDOW = 2000
BOOKMARK_S = 60.0


class EmbeddedCluster:
    """Created by `open_cluster`; every call runs on the event loop on which the cluster was opened."""

    def __init__(
        self,
        path: Path | None,
        *,
        now: Callable[[], datetime],
        rng: Random,
        pod_logs: PodLogs | None = None,
        follow_logs: FollowLogs | None = None,
        window: int = WINDOW,
        bookmark_s: float = BOOKMARK_S,
    ) -> None:
        self._pod_logs = pod_logs
        self._follow_logs = follow_logs
        self._catalog = Catalog()
        self._ledger = ObjectTable(Storage(path), self._publish)
        self._watch_cache = WatchCache(self._ledger.version, window=window, bookmark_s=bookmark_s)
        # With a seeded generator a restarted cluster would repeat its old uids, so the last version is mixed in.
        mixed = Random(f"{rng.getrandbits(64)} {self._ledger.version}")  # noqa: S311  # for names, not for secrets
        self._writer = ObjectWriter(self._ledger, now, mixed)
        self._tokens = Tokens(self._uid_of_pod)
        self._collector = GarbageCollector(self._ledger, self._catalog, self._writer)
        for definition in self._ledger.list_staged(DEFINITIONS):
            self._catalog.define(definition.json())
        self._collector.enqueue_all()
        self._tasks = (
            asyncio.create_task(self._collector.run(), name="garbage collector"),
            asyncio.create_task(expire_events(self._ledger, now), name="event expiry"),
        )

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Listing[T]:
        kind = self._kind(resource)
        watch_filter = WatchFilter(kind, namespace, labels, fields)
        matching = sorted(
            filter(watch_filter.matches, self._ledger.list_committed(kind.resource)), key=lambda each: each.key
        )
        return Listing(tuple(_decoded(resource, each) for each in matching), str(self._ledger.version))

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[AsyncIterator[Event[T]]]:
        kind = self._kind(resource)
        watch_filter = WatchFilter(kind, namespace, labels, fields)
        if not resource_version.isdecimal():
            raise BadRequest(f'Invalid value: "{resource_version}": a resource version is a number that a list gave')
        writes = self._watch_cache.watch_from(kind.resource, int(resource_version))
        events = self._events(resource, watch_filter, writes)
        try:
            yield events
        finally:
            await events.aclose()
            await writes.aclose()

    async def get(self, resource: Resource[T], key: Key) -> T:
        found = self._ledger.committed(ObjectRef(str(resource), _scoped_key(self._kind(resource), key)))
        if found is None:
            raise not_found(str(resource), key.name)
        return _decoded(resource, found)

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        kind = self._kind(resource)
        plain = _plain(body)
        target = _namespace(kind, plain, namespace)
        return await self._write(resource, lambda: self._writer.create(kind, resource.version, plain, target))

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        kind = self._kind(resource)
        scoped = _scoped_key(kind, key)
        return await self._write(resource, lambda: self._writer.replace(kind, resource.version, scoped, _plain(body)))

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return await self._patched(resource, key, patch, status=False)

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        if not self._kind(resource).has_status:
            raise NotFound(f"the server could not find the requested resource ({resource} has no status)")
        return await self._patched(resource, key, patch, status=True)

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        kind = self._kind(resource)
        await self._committed(lambda: self._writer.delete(kind, _scoped_key(kind, key), options))

    async def bind(self, pod: Key, node: str, *, uid: str = "") -> None:
        """Bind the pod to a node, once; only a scheduler does this, and no other write can."""
        kind = self._catalog.find("pods", "v1")

        def step() -> None:
            found = self._writer.find(kind, pod)
            self._writer.overwrite(kind, found, bound(found.json(), node, uid, format_time(self._writer.now())))

        await self._committed(step)

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes:
        self._check_has_log(key)
        if self._pod_logs is None:
            raise _no_logs(key)
        return await self._pod_logs(key, container, tail_lines, limit_bytes)

    async def follow_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        self._check_has_log(key)
        if self._follow_logs is None:
            raise _no_logs(key)
        async for chunk in self._follow_logs(key, container, tail_lines):
            yield chunk

    async def review_token(self, token: str, audience: str) -> Identity | None:
        return self._tokens.review(token, audience)

    def issue_token(self, pod: Key, *, uid: str, account: str, audience: str) -> str:
        """A token that a kubelet requests for a pod: it proves the pod's identity as long as the pod exists."""
        found = self._ledger.committed(ObjectRef("pods", pod))
        if found is None or found.meta.uid != uid:
            raise not_found("pods", pod.name)
        node = found.json().get("spec", {}).get("nodeName", "")
        return self._tokens.issue(pod, uid, account, audience, node)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watch_cache.close()
        self._ledger.close()

    def compact(self, resource: Resource[T]) -> None:
        """Expire all earlier versions of the kind for watches, as a compaction of etcd does."""
        self._watch_cache.compact(self._kind(resource).resource, self._ledger.version)

    async def _patched(self, resource: Resource[T], key: Key, patch: Body, *, status: bool) -> T:
        kind = self._kind(resource)
        return await self._write(
            resource,
            lambda: self._writer.patch(kind, resource.version, _scoped_key(kind, key), _plain(patch), status=status),
        )

    async def _write(self, resource: Resource[T], step: Callable[[], StoredObject]) -> T:
        return _decoded(resource, await self._committed(step))

    async def _committed(self, step: Callable[[], R]) -> R:
        try:
            result = step()
        except ClusterError:
            # The error may depend on a staged write of another caller: it is valid only once that write is committed.
            await self._ledger.flushed()
            raise
        await self._ledger.flushed()
        return result

    def _uid_of_pod(self, pod: Key) -> str:
        found = self._ledger.committed(ObjectRef("pods", pod))
        return found.meta.uid if found is not None else ""

    def _check_has_log(self, pod: Key) -> None:
        if self._ledger.committed(ObjectRef("pods", pod)) is None:
            raise not_found("pods", pod.name)

    def _kind(self, resource: Resource[T]) -> ServedKind:
        return self._catalog.find(str(resource), resource.version)

    async def _events(
        self, resource: Resource[T], watch_filter: WatchFilter, writes: AsyncGenerator[StoredWrite | None, None]
    ) -> AsyncGenerator[Event[T], None]:
        async for write in writes:
            if write is None:
                yield Event(Change.BOOKMARK, str(self._ledger.version), None)
            elif (visible := watch_filter.visible_event(write)) is not None:
                yield Event(visible.change, str(write.version), _decoded(resource, visible.new))

    def _publish(self, writes: Sequence[StoredWrite]) -> None:
        for write in writes:
            if write.new.resource == DEFINITIONS:
                if write.change is Change.DELETED:
                    self._catalog.remove(write.new.meta.name)
                else:
                    self._catalog.define(write.new.json())
        self._watch_cache.append(writes)
        self._collector.enqueue(writes)


def _no_logs(pod: Key) -> NotFound:
    return NotFound(f'pods "{pod.name}" has no log: nothing here runs pods')


def _plain(body: Body) -> JSON:
    """The body as it would arrive over the network: it shares nothing with the caller."""
    plain = msgspec.json.decode(msgspec.json.encode(body))
    if not isinstance(plain, dict):
        raise BadRequest(f"an object is a map of fields, not {type(plain).__name__}")
    return plain


def _namespace(kind: ServedKind, body: JSON, namespace: str) -> str:
    """The namespace of a new object: the requested one, or the one in its metadata."""
    if not kind.namespaced:
        return ""
    metadata = body.get("metadata")
    chosen = namespace or (metadata.get("namespace") if isinstance(metadata, dict) else "")
    if not chosen:
        raise BadRequest(f"{kind.kind} lives in a namespace, and none was given")
    return str(chosen)


def _scoped_key(kind: ServedKind, key: Key) -> Key:
    return key if kind.namespaced else Key("", key.name)


def _decoded(resource: Resource[T], each: StoredObject) -> T:
    try:
        if resource.api_version == each.api_version:
            return decoder_for(resource.model)(each.body)
        return decoder_for(resource.model)(msgspec.json.encode({**each.json(), "apiVersion": resource.api_version}))
    except msgspec.ValidationError as error:
        raise Undecodable(f'{resource} "{each.meta.name}" does not fit its model: {error}') from error


# Opens an embedded cluster with the objects that every cluster has from the start.

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class _Definition(Object, frozen=True, kw_only=True):
    spec: JSON


_DEFINITIONS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    model=_Definition,
    namespaced=False,
)


async def open_cluster(
    path: Path | None,
    *,
    now: Callable[[], datetime],
    rng: Random,
    pod_logs: PodLogs | None = None,
    follow_logs: FollowLogs | None = None,
    window: int = WINDOW,
    bookmark_s: float = BOOKMARK_S,
) -> EmbeddedCluster:
    """The cluster in the database at `path`, created if absent; without a path it is in memory.

    It serves the built-in kinds that holdfast uses, and holdfast's own. Raises `DatabaseUnusable` for an unusable file.
    """
    cluster = EmbeddedCluster(
        path,
        now=now,
        rng=rng,
        pod_logs=pod_logs,
        follow_logs=follow_logs,
        window=window,
        bookmark_s=bookmark_s,
    )
    try:
        for name in FIRST_NAMESPACES:
            await _ensure(cluster, NAMESPACES, {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITIES.items():
            await _ensure(cluster, PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        await _define(cluster, map(crd_manifest, KINDS))
    except BaseException:
        await cluster.close()
        raise
    return cluster


async def _ensure(cluster: EmbeddedCluster, resource: Resource[Any], body: JSON) -> None:
    with suppress(AlreadyExists):
        await cluster.create(resource, body)


async def _define(cluster: EmbeddedCluster, definitions: Iterable[JSON]) -> None:
    """Create or update the stored definitions to those of this release."""
    known = {each.metadata.name: each for each in (await cluster.list(_DEFINITIONS)).items}
    for wanted in definitions:
        stored = known.get(wanted["metadata"]["name"])
        if stored is None:
            await cluster.create(_DEFINITIONS, wanted)
        else:
            preserved = {"finalizers": stored.metadata.finalizers, "resourceVersion": stored.metadata.resource_version}
            updated = {**wanted, "metadata": wanted["metadata"] | preserved}
            await cluster.replace(_DEFINITIONS, Key("", stored.metadata.name), updated)
