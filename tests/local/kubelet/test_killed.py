"""A node that loses its power: all ends at once, and nobody is told."""

import asyncio
from pathlib import Path

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import LEASES, NODES
from holdfast.local.kubelet.kubelet import Kubelet
from holdfast.local.kubelet.node import LEASE_NAMESPACE, NodeDetails
from holdfast.local.kubelet.objects import RunnablePod
from holdfast.local.kubelet.processes import processes
from tests.contract.kinds import NODES as DOCUMENTS
from tests.contract.kinds import PODS
from tests.contract.waiting import gone
from tests.local.kubelet.bench import Bench, MakeBench, shell
from tests.local.kubelet.conftest import RESOURCES, now
from tests.local.kubelet.test_ending import RUNAWAY


def signalled(path: Path) -> str:
    return f"trap 'echo saved > {path}; exit 0' TERM; echo up; while :; do sleep 0.05; done"


async def test_no_process_gets_a_signal_to_save_on(bench: Bench, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    hook = {"preStop": {"exec": {"command": ["touch", str(saved)]}}}
    key = await bench.start(shell(signalled(saved), lifecycle=hook))
    await bench.logged(key, "up")
    pod = await bench.cluster.get(PODS, key)
    await bench.machine.kill()
    assert bench.processes(pod) == []
    assert not saved.exists()


async def test_nothing_is_reported_and_no_container_starts_again(bench: Bench) -> None:
    once = await bench.start(shell("echo up; sleep 1000", name="main"), name="always", restartPolicy="Always")
    sidecar = shell("echo up; sleep 1000", name="beside", restartPolicy="Always")
    other = await bench.start(shell("sleep 1000"), name="beside", initContainers=[sidecar])
    await bench.phase(once, "Running")
    await bench.phase(other, "Running")
    before = {key: await bench.cluster.get(PODS, key) for key in (once, other)}

    await bench.machine.kill()
    for key, pod in before.items():
        assert bench.processes(pod) == []
        assert (await bench.cluster.get(PODS, key)).status["phase"] == "Running"


async def test_the_end_of_its_pods_is_not_taken_in(make_bench: MakeBench) -> None:
    ended: list[str] = []

    async def note(pod: RunnablePod, _status: JSON, _read: object) -> None:
        ended.append(pod.metadata.name)

    bench = await make_bench(ended=note)
    await bench.ended(shell("true"), name="before")
    await bench.phase(await bench.start(shell("sleep 1000"), name="during"), "Running")
    await bench.machine.kill()
    assert ended == ["before"]


async def test_what_left_its_session_and_its_environment_ends_too(bench: Bench) -> None:
    key = await bench.start({"name": "main", "image": "any", "command": ["python", "-c", RUNAWAY]})
    pid = int((await bench.logged(key, "\n")).split()[0])
    assert pid in processes()
    await bench.machine.kill()
    found = processes().get(pid)
    assert found is None or found.state == "Z"


async def test_a_pod_that_waits_for_its_volumes_ends_too(bench: Bench) -> None:
    volume = {"name": "later", "configMap": {"name": "not-there"}}
    key = await bench.start(shell("true"), volumes=[volume])
    await bench.until(key, lambda pod: "not-there" in str(pod.status), "it waits")
    await asyncio.wait_for(bench.machine.kill(), 10)


async def test_the_lease_goes_with_the_node(make_bench: MakeBench, cluster: Cluster) -> None:
    bench = await make_bench()
    lease = await cluster.get(LEASES, Key(LEASE_NAMESPACE, bench.node))
    node = await cluster.get(NODES, Key("", bench.node))
    assert [owner.uid for owner in lease.metadata.owner_references] == [node.metadata.uid]
    await bench.machine.kill()
    await cluster.delete(NODES, Key("", bench.node))
    await gone(cluster, LEASES, Key(LEASE_NAMESPACE, bench.node))
    await cluster.create(NODES, {"metadata": {"name": bench.node}})  # for the fixture, which removes it


async def test_a_node_says_what_it_is_asked_to_say(cluster: Cluster, tmp_path: Path, namespace: str) -> None:
    details = NodeDetails(
        labels={"zone": "a"}, annotations={"of": "this"}, provider_id="local://a/n", message="all is pretended"
    )
    name = f"detailed-{namespace}"
    kubelet = Kubelet(cluster, name=name, data=tmp_path, resources=RESOURCES, now=now, details=details)
    async with kubelet.running():
        node = await cluster.get(DOCUMENTS, Key("", name))
    assert node.metadata.labels["zone"] == "a"
    assert node.metadata.labels["kubernetes.io/hostname"] == name
    assert node.metadata.annotations["of"] == "this"
    assert node.spec["providerID"] == "local://a/n"
    [ready] = [each for each in node.status["conditions"] if each["type"] == "Ready"]
    assert ready["message"] == "all is pretended"
    await cluster.delete(NODES, Key("", name))
