"""The contract's engine in this process, in memory, on the machine's clock."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import PODS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.controllers import add_kube_controllers
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from tests.local.controllers.kubelets import Kubelets, kubelets

from .engine import ROOMY
from .kinds import NAMESPACES, NODES
from .kubernetes_engine import ended_status, now, ready

BOOKMARK_S = 1.0

# Every container has said the same, as those of kwok's nodes have.
LINES = (b"line 1\n", b"line 2\n", b"line 3\n")

# The machines here give no signs of life, and are not to be missed for that.
PATIENCE_S = 3600.0


@asynccontextmanager
async def embedded_engine() -> AsyncIterator["EmbeddedEngine"]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0), bookmark_s=BOOKMARK_S, pod_logs=_said)
    operator = Operator(cluster, identity="plane", now=utc_now, random=Random(0), metrics=Metrics())
    add_kube_controllers(operator, cluster, now=utc_now, grace_s=PATIENCE_S)
    machines, controller = kubelets(operator, now=utc_now)
    operator.add(controller)
    running = asyncio.create_task(operator.run())
    try:
        yield EmbeddedEngine(cluster, machines)
    finally:
        operator.stop()
        await running
        await cluster.close()


async def _said(_key: Key, _container: str, tail_lines: int | None, limit_bytes: int | None) -> bytes:
    return b"".join(LINES[-(tail_lines or len(LINES)) :])[:limit_bytes]


class EmbeddedEngine:
    def __init__(self, cluster: EmbeddedCluster, machines: Kubelets) -> None:
        self.cluster: Cluster = cluster
        self._embedded = cluster
        self._machines = machines

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

    async def freeze_node(self, name: str) -> None:
        self._machines.broken.add(name)

    async def break_node(self, name: str) -> None:
        await self.freeze_node(name)
        await self.cluster.patch_status(NODES, Key("", name), {"status": {"conditions": [ready("False", now())]}})

    async def add_storage(self, storage_class: str, size: str) -> None:
        pass

    async def end_pod(self, pod: Key, *, exit_code: int = 0, ended: str = "", disrupted: bool = False) -> None:
        running = await self.cluster.get(PODS, pod)
        status = ended_status(running, exit_code, ended or now(), disrupted)
        await self.cluster.patch_status(PODS, pod, {"status": status})

    async def show_again(self, pod: Key) -> None:
        """Nothing is overlooked here."""

    async def token(self, pod: Pod, audience: str, *, account: str = "default") -> str:
        return self._embedded.issue_token(pod.metadata.key, uid=pod.metadata.uid, account=account, audience=audience)

    async def forget(self, resource: Resource[Any]) -> None:
        self._embedded.compact(resource)
