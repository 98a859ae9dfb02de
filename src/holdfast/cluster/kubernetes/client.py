"""The cluster protocol, over HTTP to a Kubernetes API server."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime
from random import Random
from typing import TypeVar

from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.kubernetes import requests
from holdfast.cluster.kubernetes.kubeconfig import Config
from holdfast.cluster.kubernetes.requests import ApiRequest
from holdfast.cluster.kubernetes.responses import LenientDecoder, OnUndecodable, WatchLine, decode
from holdfast.cluster.kubernetes.retries import DEFAULT_RETRY_LIMITS, RetryLimits
from holdfast.cluster.kubernetes.subresources import ExecStream, parse_token_review, to_review
from holdfast.cluster.kubernetes.transport import DEFAULT_TIMEOUTS, Gate, Observe, Timeouts, Transport
from holdfast.cluster.kubernetes.watch import DecodeContext, Lister, parse_event
from holdfast.cluster.protocol import DELETE, Body, DeleteOptions, Event, Identity, Listing, Resource

T = TypeVar("T", bound=Object)


class _ServerVersion(Struct, frozen=True, rename="camel"):
    git_version: str = ""


class KubernetesCluster:
    """One API server; create it with `connect`. Views from `gated` share its connections."""

    def __init__(self, transport: Transport, lister: Lister, decoder: LenientDecoder, gate: Gate | None = None) -> None:
        self._transport = transport
        self._lister = lister
        self._decoder = decoder
        self._gate = gate

    def gated(self, gate: Gate) -> "KubernetesCluster":
        """The same cluster, calling `gate` before every write; an exception of the gate prevents the write."""
        return KubernetesCluster(self._transport, self._lister, self._decoder, gate)

    async def list(
        self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Listing[T]:
        return await self._lister.list(resource, namespace, {"labelSelector": labels, "fieldSelector": fields})

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> AbstractAsyncContextManager[AsyncIterator[Event[T]]]:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "labelSelector": labels,
            "fieldSelector": fields,
            # Random, so that watches that began together don't all end together.
            "timeoutSeconds": str(self._transport.rng.randint(300, 600)),
        }
        return self._watch(resource, requests.list_request(resource, namespace, query, verb="watch"))

    async def get(self, resource: Resource[T], key: Key) -> T:
        return await self._send(resource, requests.to_get(resource, key))

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        return await self._send(resource, requests.to_create(resource, body, namespace))

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        return await self._send(resource, requests.to_replace(resource, key, body))

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return await self._send(resource, requests.to_patch(resource, key, patch))

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return await self._send(resource, requests.to_patch(resource, key, patch, subresource="status"))

    async def delete(self, resource: Resource[T], key: Key, options: DeleteOptions = DELETE) -> None:
        await self._transport.send(requests.to_delete(resource, key, options), self._gate)

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes:
        request = requests.to_pod_log(key, container=container, tail_lines=tail_lines, limit_bytes=limit_bytes)
        return await self._transport.send(request)

    def follow_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return self._transport.chunks(requests.to_pod_log(key, container=container, tail_lines=tail_lines, follow=True))

    def run_in_pod(
        self, key: Key, command: Sequence[str], *, container: str
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run a command in a running container; the connection closes at the end of the block."""
        return self._transport.attach(requests.to_exec(key, container=container, command=command))

    async def ask_pod(self, key: Key, *, port: int, path: str) -> bytes:
        """The answer of a program in the pod to a GET, by way of the API server."""
        return await self._transport.send(requests.to_pod_proxy(key, port=port, path=path))

    async def server_version(self) -> str:
        """Such as v1.36.3."""
        request = requests.to_version()
        return decode(_ServerVersion, await self._transport.send(request), request.description).git_version

    async def review_token(self, token: str, audience: str) -> Identity | None:
        # No gate: a review changes nothing, and a standby replica may review tokens too.
        request = to_review(token, audience)
        return parse_token_review(token, audience, await self._transport.send(request), request.description)

    async def close(self) -> None:
        """Close the connections of all views."""
        await self._transport.close()

    async def _send(self, resource: Resource[T], request: ApiRequest) -> T:
        return decode(resource.model, await self._transport.send(request, self._gate), request.description)

    @asynccontextmanager
    async def _watch(self, resource: Resource[T], request: ApiRequest) -> AsyncIterator[AsyncIterator[Event[T]]]:
        async with self._transport.stream(request) as lines, aclosing(self._events(resource, request, lines)) as events:
            yield events

    async def _events(
        self, resource: Resource[T], request: ApiRequest, lines: AsyncIterator[bytes]
    ) -> AsyncGenerator[Event[T]]:
        context = DecodeContext(request.description, self._transport.source, self._decoder)
        async for line in lines:
            yield parse_event(resource, decode(WatchLine, line, request.description), context)


def connect(
    config: Config,
    *,
    rng: Random,
    now: Callable[[], datetime],
    observe: Observe | None = None,
    on_undecodable: OnUndecodable | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    retry_limits: RetryLimits = DEFAULT_RETRY_LIMITS,
) -> KubernetesCluster:
    """A cluster that connects on the first request; `now` is the wall clock, with its time zone."""
    transport = Transport(config, rng=rng, now=now, observe=observe, timeouts=timeouts, patience=retry_limits)
    decoder = LenientDecoder(on_undecodable)
    return KubernetesCluster(transport, Lister(transport, decoder), decoder)
