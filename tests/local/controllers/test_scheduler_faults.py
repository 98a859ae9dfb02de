"""Bindings that fail, and pods that change while they are looked at."""

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, Conflict, ServerError
from holdfast.cluster.resources import PODS
from holdfast.local.apiserver.server import EmbeddedCluster
from tests.local.controllers.bench import a_cluster
from tests.local.controllers.crashing import CrashingCluster
from tests.local.controllers.test_scheduling_life import gpus
from tests.runtime.virtual import virtual


class Stubborn(CrashingCluster):
    """Refuses its first bindings with these errors."""

    def __init__(self, cluster: EmbeddedCluster, *errors: ClusterError) -> None:
        super().__init__(cluster, 10**9, after=True)
        self.errors = list(errors)
        self.bindings: list[tuple[str, str]] = []

    async def bind(self, pod: Key, node: str, *, uid: str = "") -> None:
        self.bindings.append((pod.name, node))
        if self.errors:
            raise self.errors.pop(0)
        await super().bind(pod, node, uid=uid)


@virtual
async def test_a_binding_that_the_server_failed_is_made_again() -> None:
    async with a_cluster() as bench:
        await bench.crash()
        stubborn = Stubborn(bench.cluster, ServerError("disk full"), ServerError("disk full"))
        bench.start(stubborn)
        await bench.add_node(gpus=1)
        await bench.run_pod("one", **gpus(1))
        await bench.running(1)
        assert stubborn.bindings == [("one", "m-1")] * 3


@virtual
async def test_a_binding_that_failed_holds_no_capacity() -> None:
    async with a_cluster() as bench:
        await bench.crash()
        stubborn = Stubborn(bench.cluster, ServerError("disk full"))
        bench.start(stubborn)
        await bench.add_node(gpus=1)
        await bench.run_pod("one", **gpus(1))
        (pod,) = await bench.running(1)
        await bench.end(pod)
        await bench.run_pod("two", **gpus(1))
        (pod,) = await bench.running(1)
        assert pod.metadata.name == "two"


@virtual
async def test_a_pod_that_somebody_else_took_in_hand_is_let_be() -> None:
    async with a_cluster() as bench:
        await bench.crash()
        stubborn = Stubborn(bench.cluster, Conflict("already assigned"))
        bench.start(stubborn)
        await bench.add_node(gpus=1)
        key = await bench.run_pod("one", **gpus(1))
        await bench.until(PODS, key, lambda _: stubborn.bindings)
        await bench.cluster.bind(key, "m-1")
        await bench.running(1)
        assert len(stubborn.bindings) == 1


@virtual
async def test_one_failed_binding_does_not_keep_the_others_waiting() -> None:
    async with a_cluster() as bench:
        await bench.crash()
        bench.start(Stubborn(bench.cluster, ServerError("disk full")))
        for number in range(5):
            await bench.run_pod(f"p-{number}", **gpus(1))
        await bench.add_node(gpus=5)
        await bench.running(5)
