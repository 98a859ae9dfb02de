"""The contract's engine in this process, in memory, on the machine's clock."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

from holdfast.api.meta import Key
from holdfast.cluster.embedded import EmbeddedCluster, open_cluster
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import PODS

from .engine import ROOMY
from .kinds import NAMESPACES, NODES
from .kubernetes_engine import ended_status, now, ready

BOOKMARK_S = 1.0

# Fixtures that it can't serve: nothing here schedules and runs pods yet.
LACKS = frozenset({"pool"})


@asynccontextmanager
async def embedded_engine() -> AsyncIterator["EmbeddedEngine"]:
    cluster = await open_cluster(None, now=lambda: datetime.now(UTC), rng=Random(0), bookmark_s=BOOKMARK_S)
    try:
        yield EmbeddedEngine(cluster)
    finally:
        await cluster.close()


class EmbeddedEngine:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster: Cluster = cluster
        self._embedded = cluster

    async def namespace(self) -> str:
        return (await self.cluster.create(NAMESPACES, {"metadata": {"generateName": "contract-"}})).metadata.name

    async def add_node(
        self,
        name: str,
        *,
        resources: Mapping[str, str] = ROOMY,
        labels: Mapping[str, str] = {},
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        await self.cluster.create(
            NODES,
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
                "spec": {"taints": list(taints)},
                "status": {"capacity": dict(resources), "conditions": [ready("True", now())]},
            },
        )

    async def break_node(self, name: str) -> None:
        await self.cluster.patch_status(NODES, Key("", name), {"status": {"conditions": [ready("False", now())]}})

    async def end_pod(self, pod: Key, *, exit_code: int = 0, ended: str = "", disrupted: bool = False) -> None:
        running = await self.cluster.get(PODS, pod)
        status = ended_status(running, exit_code, ended or now(), disrupted)
        await self.cluster.patch_status(PODS, pod, {"status": status})

    async def forget(self, resource: Resource[Any]) -> None:
        self._embedded.forget_history(resource)
