"""The machines of one test, and its pods on them."""

from collections.abc import Mapping, Sequence

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import PODS

from .engine import ROOMY, Engine
from .kinds import NODES
from .pods import INDEX, POOL
from .waiting import listed


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
        pods = await listed(self.cluster, PODS, self.name, enough, f"{count} pods of {job} run", labels=labels)
        return running(pods, other_than)

    async def end(self, *pods: Pod, exit_code: int = 0, ended: str = "", disrupted: bool = False) -> None:
        for pod in pods:
            await self._engine.end_pod(pod.metadata.key, exit_code=exit_code, ended=ended, disrupted=disrupted)

    async def drop(self) -> None:
        for name in self._nodes:
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
