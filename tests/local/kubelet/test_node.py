"""The machine as a node of the cluster, and its hold on the cluster when that fails for a while."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.api.meta import Key
from holdfast.cluster.errors import Expired, Unreachable
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import LEASES, NODES
from holdfast.local.kubelet import node
from holdfast.local.kubelet.kubelet import Kubelet
from holdfast.local.kubelet.node import NodeAgent, capacity
from tests.contract.kinds import NODES as DOCUMENTS
from tests.contract.kinds import PODS
from tests.local.kubelet.bench import Bench, MakeBench, shell
from tests.local.kubelet.conftest import RESOURCES, now


class Weak:
    """A cluster that fails as often as it is told to, and otherwise is the one behind it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.failures: dict[str, list[Exception]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def _fail(self, name: str) -> None:
        if self.failures.get(name):
            raise self.failures[name].pop()

    async def patch_status(self, *args: Any, **more: Any) -> Any:
        self._fail("patch_status")
        return await self._cluster.patch_status(*args, **more)

    async def delete(self, *args: Any, **more: Any) -> Any:
        self._fail("delete")
        return await self._cluster.delete(*args, **more)

    async def list(self, *args: Any, **more: Any) -> Any:
        self._fail("list")
        return await self._cluster.list(*args, **more)

    @asynccontextmanager
    async def watch(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        self._fail("watch")
        async with self._cluster.watch(*args, **more) as events:
            yield events


async def test_the_node_says_what_the_machine_has_and_that_it_is_ready(bench: Bench) -> None:
    found = await bench.cluster.get(DOCUMENTS, Key("", bench.node))
    assert found.status["capacity"] == found.status["allocatable"] == RESOURCES
    [ready] = [one for one in found.status["conditions"] if one["type"] == "Ready"]
    assert ready["status"] == "True"
    assert found.metadata.labels["kubernetes.io/hostname"] == bench.node


async def test_a_lease_is_renewed_as_a_sign_of_life(bench: Bench) -> None:
    key = Key(node.LEASE_NAMESPACE, bench.node)
    before = (await bench.cluster.get(LEASES, key)).spec.renew_time
    await NodeAgent(bench.cluster, bench.node, RESOURCES, now).register()
    after = await bench.cluster.get(LEASES, key)
    assert before
    assert after.spec.renew_time
    assert before < after.spec.renew_time
    assert after.spec.holder_identity == bench.node


async def test_a_node_that_is_there_already_is_taken_over(make_bench: MakeBench) -> None:
    first = await make_bench()
    await first.machine.stop()
    second = await make_bench()
    assert (await second.ended(shell("true"))).status["phase"] == "Succeeded"


def test_capacity_is_what_the_machine_has() -> None:
    found = capacity(gpus=3)
    assert int(found["cpu"]) >= 1
    assert int(found["memory"].removesuffix("Ki")) > 2**16
    assert found["nvidia.com/gpu"] == "3"


async def test_the_machine_goes_on_when_the_cluster_comes_back(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    weak = Weak(cluster)
    machine = Kubelet(weak, name=f"weak-{namespace}", data=tmp_path, resources=RESOURCES, now=now)
    async with machine.running():
        bench = Bench(cluster, machine, namespace, f"weak-{namespace}", tmp_path)
        weak.failures = {
            "patch_status": [Unreachable("cut off")],
            "delete": [Unreachable("cut off")],
            "watch": [ValueError("strange"), Unreachable("cut off"), Expired("too old")],
            "list": [Unreachable("cut off")],
        }
        key = await bench.start(shell("sleep 1000"))
        await bench.phase(key, "Running")
        await bench.delete(key)
        await bench.gone(key)
    assert not weak.failures["patch_status"]
    assert not weak.failures["delete"]
    await cluster.delete(NODES, Key("", bench.node))


async def test_two_writers_of_one_status_keep_each_others_conditions(bench: Bench) -> None:
    key = await bench.start(shell('until test -e "$HOME/go"; do sleep 0.05; done'))
    pod = await bench.phase(key, "Running")
    foreign = {"type": "example.com/Seen", "status": "True"}
    others = [*pod.status["conditions"], foreign]
    await bench.cluster.patch_status(PODS, key, {"status": {"conditions": others}})
    (bench.folder(pod) / "containers/main/work/go").touch()
    pod = await bench.phase(key, "Succeeded")
    assert "example.com/Seen" in {one["type"] for one in pod.status["conditions"]}
