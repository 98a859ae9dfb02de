"""The machines of one test, and its pods on them."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import PODS
from tests.control_plane.waiting import eventually

from .engine import ROOMY, Engine
from .kinds import NODES
from .pods import INDEX, POOL

# A bound pod that has not started by then was overlooked.
OVERLOOKED_S = 20.0


class Pool:
    """Only pods that select the pool are meant for its machines: tests that run one after another don't meet here."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self.name = namespace
        self._engine = engine
        self._nodes: list[str] = []

    @property
    def cluster(self) -> Cluster:
        return self._engine.cluster

    async def add(
        self,
        suffix: str = "a",
        *,
        resources: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """One more machine; its name."""
        name = f"{self.name}-{suffix}"
        self._nodes.append(name)
        await self._engine.add_node(
            name,
            resources={**ROOMY, **(resources or {})},
            labels={POOL: self.name, **(labels or {})},
            taints=taints,
        )
        return name

    async def running(self, count: int, *, job: str = "", other_than: Sequence[str] = ()) -> tuple[Pod, ...]:
        """Exactly so many pods, of a Job or all, once they run; in the order of their index."""

        def enough(pods: tuple[Pod, ...]) -> bool:
            return len(running(pods, other_than)) == count

        labels = f"batch.kubernetes.io/job-name={job}" if job else ""
        loop = asyncio.get_running_loop()
        overlooked_at = loop.time() + OVERLOOKED_S

        async def look() -> tuple[Pod, ...]:
            nonlocal overlooked_at
            pods = (await self.cluster.list(PODS, namespace=self.name, labels=labels)).items
            if loop.time() > overlooked_at:
                overlooked_at = loop.time() + OVERLOOKED_S
                for pod in pods:
                    if pod.status.phase == "Pending" and pod.spec.node_name:
                        with suppress(NotFound):
                            await self._engine.show_again(pod.metadata.key)
            return pods

        pods = await eventually(look, enough, what=f"{count} pods of {job or self.name} run")
        return running(pods, other_than)

    async def end(self, *pods: Pod, exit_code: int = 0, ended: str = "", disrupted: bool = False) -> None:
        for pod in pods:
            await self._engine.end_pod(pod.metadata.key, exit_code=exit_code, ended=ended, disrupted=disrupted)

    async def drop(self) -> None:
        for name in self._nodes:
            with suppress(NotFound):  # a test may have deleted it
                await self.cluster.delete(NODES, Key("", name))


def running(pods: Sequence[Pod], other_than: Sequence[str] = ()) -> tuple[Pod, ...]:
    chosen = (
        pod
        for pod in pods
        if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp and pod.metadata.uid not in other_than
    )
    return tuple(sorted(chosen, key=index_of))


def index_of(pod: Pod) -> int:
    return int(pod.metadata.labels.get(INDEX, "0"))
