"""A cluster as a process sees it that dies at one of its writes."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import NotLeading
from holdfast.cluster.protocol import DELETE, Body, DeleteOptions, Event, Identity, Listing, Resource
from holdfast.local.apiserver.server import EmbeddedCluster

T = TypeVar("T", bound=Object)
S = TypeVar("S")


class CrashingCluster:
    """The write number `at` is the last one: it is not made any more, or it is and nobody hears of it (`after`)."""

    def __init__(self, cluster: EmbeddedCluster, at: int, *, after: bool) -> None:
        self._cluster = cluster
        self._left = at
        self._after = after

    @property
    def has_crashed(self) -> bool:
        return self._left <= 0

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Listing[T]:
        return await self._cluster.list(resource, namespace=namespace, labels=labels, fields=fields)

    def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AbstractAsyncContextManager[AsyncIterator[Event[T]]]:
        return self._cluster.watch(
            resource, resource_version=resource_version, namespace=namespace, labels=labels, fields=fields
        )

    async def get(self, resource: Resource[T], key: Key) -> T:
        return await self._cluster.get(resource, key)

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        self._before_write()
        return self._after_write(await self._cluster.create(resource, body, namespace=namespace))

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        self._before_write()
        return self._after_write(await self._cluster.replace(resource, key, body))

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        self._before_write()
        return self._after_write(await self._cluster.patch(resource, key, patch))

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        self._before_write()
        return self._after_write(await self._cluster.patch_status(resource, key, patch))

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        self._before_write()
        await self._cluster.delete(resource, key, options)
        self._after_write(None)

    async def bind(self, pod: Key, node: str, *, uid: str = "") -> None:
        self._before_write()
        await self._cluster.bind(pod, node, uid=uid)
        self._after_write(None)

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes:
        return await self._cluster.pod_log(key, container=container, tail_lines=tail_lines, limit_bytes=limit_bytes)

    def follow_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return self._cluster.follow_log(key, container=container, tail_lines=tail_lines)

    async def review_token(self, token: str, audience: str) -> Identity | None:
        return await self._cluster.review_token(token, audience)

    async def close(self) -> None:
        """Who opened the cluster closes it."""

    def _before_write(self) -> None:
        if self.has_crashed or (self._left == 1 and not self._after):
            self._left = 0
            raise NotLeading("crashed")

    def _after_write(self, answer: S) -> S:
        self._left -= 1
        if self.has_crashed:
            raise NotLeading("crashed")
        return answer
