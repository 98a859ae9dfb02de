"""A node of the embedded cluster, and the part of its agent that watches for notices, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON, Body, Cluster, Resource, T
from holdfast.cluster.resources import EVENTS, NODES, PODS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.node.notice.mark import NODE_DOCUMENTS, NodeMarker
from holdfast.node.notice.metrics import NoticeMetrics
from holdfast.node.notice.sidecars import SidecarNotifier
from holdfast.node.notice.watch import NoticeWatch
from holdfast.pods.failure import PREEMPTED
from tests.local.controllers.crashing import CrashingCluster

NODE = "spot-1"
BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
FOREIGN_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "message": "posted",
    "lastHeartbeatTime": "2026-03-01T00:00:00Z",
    "lastTransitionTime": "2026-03-01T00:00:00Z",
}


def now() -> datetime:
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


class RecordingCluster(CrashingCluster):
    """Notes every write: (verb, plural). Before a write to the Node, `interfere` may write first, as others do."""

    def __init__(self, cluster: EmbeddedCluster, at: int = 1000, *, after: bool = False) -> None:
        super().__init__(cluster, at, after=after)
        self.writes: list[tuple[str, str]] = []

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        made = await super().create(resource, body, namespace=namespace)
        self.writes.append(("create", resource.plural))
        return made

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        made = await super().patch(resource, key, patch)
        self.writes.append(("patch", resource.plural))
        return made

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        made = await super().patch_status(resource, key, patch)
        self.writes.append(("patch_status", resource.plural))
        return made


ONE_NOTICE = [("create", "events"), ("patch", "nodes"), ("patch_status", "nodes")]


@asynccontextmanager
async def a_node(provider_id: str = "") -> AsyncIterator[EmbeddedCluster]:
    """A cluster with one Node, on which others have written too."""
    cluster = await open_cluster(None, now=now, rng=Random(1))
    try:
        spec: JSON = {"taints": [FOREIGN_TAINT], **({"providerID": provider_id} if provider_id else {})}
        await cluster.create(NODES, {"metadata": {"name": NODE}, "spec": spec})
        await cluster.patch_status(NODES, Key("", NODE), {"status": {"conditions": [READY]}})
        yield cluster
    finally:
        await cluster.close()


async def a_pod(cluster: EmbeddedCluster, name: str, uid: str, *, node: str = NODE, **status: Any) -> None:
    """A worker's pod with a sidecar, that runs."""
    sidecar = {
        "name": "holdfast-sidecar",
        "image": "holdfast",
        "restartPolicy": "Always",
        "env": [{"name": "HOLDFAST_JOB_UID", "value": uid}],
    }
    spec = {"nodeName": node, "initContainers": [sidecar], "containers": [{"name": "trainer", "image": "trainer"}]}
    await cluster.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")
    running = {"phase": "Running", "podIP": "127.0.0.1", **status}
    await cluster.patch_status(PODS, Key("default", name), {"status": running})


class WatchingAgent:
    def __init__(self, watch: NoticeWatch, registry: CollectorRegistry, task: asyncio.Task[None]) -> None:
        self.watch = watch
        self.registry = registry
        self.task = task

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def watching(cluster: Cluster, address: str, *, port: int = 1) -> AsyncIterator[WatchingAgent]:
    """The agent inside the block; it ends there as if killed."""
    registry = CollectorRegistry()
    metrics = NoticeMetrics(registry)
    async with aiohttp.ClientSession() as session:
        marker = NodeMarker(cluster, NODE, instance=f"holdfast-node-{NODE}")
        sidecars = SidecarNotifier(cluster, NODE, session, on_call=metrics.called, port=port)
        watch = NoticeWatch(marker, sidecars, metrics, now=now, address=address)
        task = asyncio.create_task(watch.run())
        try:
            yield WatchingAgent(watch, registry, task)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def node_document(cluster: EmbeddedCluster) -> JSON:
    return (await cluster.get(NODE_DOCUMENTS, Key("", NODE))).document


async def preempted_condition(cluster: EmbeddedCluster) -> JSON | None:
    conditions = (await node_document(cluster))["status"]["conditions"]
    return next((each for each in conditions if each["type"] == PREEMPTED), None)


async def taints(cluster: EmbeddedCluster) -> list[JSON]:
    found: list[JSON] = (await node_document(cluster))["spec"].get("taints", [])
    return found


async def event_messages(cluster: EmbeddedCluster) -> list[str]:
    return [f"{event.reason}: {event.message}" for event in (await cluster.list(EVENTS, namespace="default")).items]
