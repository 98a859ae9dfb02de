"""The cluster protocol, over HTTP to a Kubernetes API server."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime
from random import Random
from typing import TypeVar

from holdfast.api.meta import Key, Object
from holdfast.cluster.kubernetes import requests
from holdfast.cluster.kubernetes.kubeconfig import Config
from holdfast.cluster.kubernetes.requests import ApiRequest
from holdfast.cluster.kubernetes.responses import LenientDecoder, OnUndecodable, WatchLine, decode
from holdfast.cluster.kubernetes.retries import DEFAULT_PATIENCE, RetryLimits
from holdfast.cluster.kubernetes.subresources import ExecStream, parse_token_review, to_review
from holdfast.cluster.kubernetes.transport import DEFAULT_TIMEOUTS, Gate, Observe, Timeouts, Transport
from holdfast.cluster.kubernetes.watch import DecodeContext, Lister, parse_event
from holdfast.cluster.protocol import Body, Event, Identity, Listing, Propagation, Resource

T = TypeVar("T", bound=Object)


class KubernetesCluster:
    """One API server; `connect` makes it. Views made by `gated` share its connections."""

    def __init__(self, transport: Transport, lister: Lister, salvage: LenientDecoder, gate: Gate | None = None) -> None:
        self._transport = transport
        self._lister = lister
        self._salvage = salvage
        self._gate = gate

    def gated(self, gate: Gate) -> "KubernetesCluster":
        """The same cluster, calling `gate` before every write; what the gate raises holds the write back."""
        return KubernetesCluster(self._transport, self._lister, self._salvage, gate)

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
            # Spread, so that watches that began together don't all end together.
            "timeoutSeconds": str(self._transport.rng.randint(300, 600)),
        }
        return self._watch(resource, requests.list_request(resource, namespace, query, verb="watch"))

    async def get(self, resource: Resource[T], key: Key) -> T:
        return await self._ask(resource, requests.to_get(resource, key))

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        return await self._ask(resource, requests.to_create(resource, body, namespace))

    async def replace(self, resource: Resource[T], key: Key, body: Body) -> T:
        return await self._ask(resource, requests.to_replace(resource, key, body))

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return await self._ask(resource, requests.to_patch(resource, key, patch))

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        return await self._ask(resource, requests.to_patch(resource, key, patch, subresource="status"))

    async def delete(
        self,
        resource: Resource[T],
        key: Key,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
        grace_period_s: int | None = None,
    ) -> None:
        ask = requests.to_delete(
            resource,
            key,
            uid=uid,
            resource_version=resource_version,
            propagation=propagation,
            grace_period_s=grace_period_s,
        )
        await self._transport.send(ask, self._gate)

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes:
        ask = requests.to_pod_log(key, container=container, tail_lines=tail_lines, limit_bytes=limit_bytes)
        return await self._transport.send(ask)

    def follow_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return self._transport.chunks(requests.to_pod_log(key, container=container, tail_lines=tail_lines, follow=True))

    def run_in_pod(
        self, key: Key, command: Sequence[str], *, container: str
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run a command in a container that runs; it is cut off at the end of the block."""
        return self._transport.attach(requests.to_exec(key, container=container, command=command))

    async def review_token(self, token: str, audience: str) -> Identity | None:
        # Not held back by the gate: it changes nothing, and a standby may ask too.
        ask = to_review(token, audience)
        return parse_token_review(token, audience, await self._transport.send(ask), ask.description)

    async def close(self) -> None:
        """Close the connections, of every view."""
        await self._transport.close()

    async def _ask(self, resource: Resource[T], ask: ApiRequest) -> T:
        return decode(resource.model, await self._transport.send(ask, self._gate), ask.description)

    @asynccontextmanager
    async def _watch(self, resource: Resource[T], ask: ApiRequest) -> AsyncIterator[AsyncIterator[Event[T]]]:
        async with self._transport.stream(ask) as lines, aclosing(self._events(resource, ask, lines)) as events:
            yield events

    async def _events(
        self, resource: Resource[T], ask: ApiRequest, lines: AsyncIterator[bytes]
    ) -> AsyncGenerator[Event[T]]:
        reading = DecodeContext(ask.description, self._transport.source, self._salvage)
        async for line in lines:
            yield parse_event(resource, decode(WatchLine, line, ask.description), reading)


def connect(
    config: Config,
    *,
    rng: Random,
    now: Callable[[], datetime],
    observe: Observe | None = None,
    on_undecodable: OnUndecodable | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    patience: RetryLimits = DEFAULT_PATIENCE,
) -> KubernetesCluster:
    """A cluster that connects when it is first asked; `now` is the wall clock, with its zone."""
    transport = Transport(config, rng=rng, now=now, observe=observe, timeouts=timeouts, patience=patience)
    salvage = LenientDecoder(on_undecodable)
    return KubernetesCluster(transport, Lister(transport, salvage), salvage)
