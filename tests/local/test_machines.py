"""Nodes of machines on this computer: they join by themselves, get along with each other, and are taken back."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.kubelet.kubelet import Kubelet, identity_of
from holdfast.local.kubelet.node import PLAIN_NODE, NodeDetails
from holdfast.local.machines import LocalMachines, NodeNotStarted
from holdfast.pods.failure import PREEMPTED
from holdfast.providers.local.runner import LocalNodeSpec
from tests.contract.kinds import CLAIMS, EVENTS, NODES, PODS, Document
from tests.contract.waiting import listed, until
from tests.control_plane.waiting import eventually
from tests.local.kubelet.bench import Bench, env_lines, shell
from tests.local.kubelet.conftest import now
from tests.local.kubelet.test_killed import signalled

OWN = "this-computer"
OFFERED = {"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "1"}


def machine(name: str, *, gpus: int = 1) -> LocalNodeSpec:
    return LocalNodeSpec(
        name=name,
        zone="us-central1-b",
        uid=f"uid-of-{name}",
        machine_type="n1-standard-4",
        gpu_type="nvidia-l4" if gpus else "",
        gpu_count=gpus,
    )


class Computer:
    """Its own node, and those of machines."""

    def __init__(self, cluster: EmbeddedCluster, data: Path) -> None:
        self.cluster = cluster
        self.data = data
        self.own = self._make(OWN, data, OFFERED, PLAIN_NODE)
        self.machines = LocalMachines(
            cluster, folder=data / "machines", resources=OFFERED, make_kubelet=self._make, now=now
        )

    def _make(self, name: str, data: Path, resources: Mapping[str, str], details: NodeDetails) -> Kubelet:
        shared = self.own.shared if name != OWN else None
        return Kubelet(self.cluster, name=name, data=data, resources=resources, now=now, details=details, shared=shared)

    def bench(self, node: str) -> Bench:
        kubelet = self.own if node == OWN else self.machines.kubelet(node)
        assert kubelet is not None
        folder = self.data if node == OWN else self.data / "machines" / node
        return Bench(self.cluster, kubelet, "default", node, folder)

    async def start(self, name: str, *, gpus: int = 1) -> Bench:
        await self.machines.start(machine(name, gpus=gpus))
        return self.bench(name)

    async def node(self, name: str) -> Document:
        return await self.cluster.get(NODES, Key("", name))


@pytest.fixture
async def computer(tmp_path: Path) -> AsyncIterator[Computer]:
    cluster = await open_cluster(None, now=now, rng=Random(1))
    try:
        computer = Computer(cluster, tmp_path / "data")
        try:
            await computer.own.start()
            yield computer
        finally:
            await asyncio.gather(computer.machines.stop(), computer.own.stop())
    finally:
        await cluster.close()


async def test_a_machine_is_a_node_that_says_whose_it_is_and_that_its_gpus_are_pretended(computer: Computer) -> None:
    await computer.start("m1", gpus=2)
    node = await computer.node("m1")
    labels = node.metadata.labels
    assert labels["holdfast.dev/spot"] == "true"
    assert labels["holdfast.dev/instance"] == "uid-of-m1"
    assert labels["topology.kubernetes.io/zone"] == "us-central1-b"
    assert labels["topology.kubernetes.io/region"] == "us-central1"
    assert labels["node.kubernetes.io/instance-type"] == "n1-standard-4"
    assert node.spec["providerID"] == "local://us-central1-b/m1"
    assert node.status["allocatable"] == {**OFFERED, "nvidia.com/gpu": "2"}
    assert node.metadata.annotations["holdfast.dev/pretended-gpus"] == "2"
    [ready] = node.status["conditions"]
    assert ready["message"].endswith("its GPUs are pretended: 2 × nvidia-l4")


async def test_only_the_node_of_a_spot_machine_is_labelled_as_one(computer: Computer) -> None:
    await computer.machines.start(structs.replace(machine("m1"), preemptible=False))
    labels = (await computer.node("m1")).metadata.labels
    assert "holdfast.dev/spot" not in labels
    assert labels["holdfast.dev/instance"] == "uid-of-m1"


async def test_a_machine_without_gpus_offers_none(computer: Computer) -> None:
    await computer.start("m1", gpus=0)
    node = await computer.node("m1")
    assert "nvidia.com/gpu" not in node.status["allocatable"]
    assert "pretended" not in str(node.status["conditions"])


GPU = {"limits": {"nvidia.com/gpu": "1"}}


async def test_each_machine_gives_out_its_own_gpus(computer: Computer) -> None:
    benches = [computer.bench(OWN), await computer.start("m1"), await computer.start("m2", gpus=2)]
    keys = [
        await bench.start(shell("env", resources=GPU), name=f"pod-{bench.node}") for bench in (*benches, benches[2])[:3]
    ]
    for bench, key in zip(benches, keys, strict=True):
        await bench.phase(key, "Succeeded")
        assert env_lines(await bench.log(key))["CUDA_VISIBLE_DEVICES"] == "0"
    refused = await benches[1].ended(shell("true", resources={"limits": {"nvidia.com/gpu": "2"}}), name="too-much")
    assert "the pod asks for 2 nvidia.com/gpu" in refused.status["message"]


async def test_pods_on_two_machines_and_the_own_node_meet_and_share_claims(computer: Computer) -> None:
    """One network and one set of claims, as in a cluster."""
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await computer.cluster.create(CLAIMS, {"metadata": {"name": "shared"}, "spec": claim}, namespace="default")
    volume: JSON = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}],
        "subdomain": "workers",
    }
    mount: JSON = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    address = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    env = [{"name": "FIRST", "value": "first.workers.default.svc"}, address]
    nodes = [OWN, "m1", "m2"]
    benches = [computer.bench(OWN), await computer.start("m1"), await computer.start("m2")]
    keys = [
        await bench.start(
            shell('touch "/data/$HOSTNAME"; echo "$FIRST $IP"; sleep 1000', env=env, **mount),
            name=f"pod-{index}",
            hostname="first" if index == 1 else f"other-{index}",
            **volume,
        )
        for index, bench in enumerate(benches)
    ]
    lines = [(await bench.logged(key, "\n")).split() for bench, key in zip(benches, keys, strict=True)]
    assert len({first for first, _ in lines}) == 1, "one name means one address everywhere"
    assert lines[1][0] == lines[1][1], "it is that of the pod with the name"
    assert len({own for _, own in lines}) == len(nodes)
    folder = computer.data / "volumes" / "default" / "shared"
    assert sorted(path.name for path in folder.iterdir()) == ["first", "other-0", "other-2"]


SIDECAR_CODE = """
import http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.path, self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(202)
        self.end_headers()

http.server.HTTPServer((os.environ["IP"], 8470), Handler).serve_forever()
"""


async def test_a_notice_marks_the_node_as_the_agent_does_and_reaches_the_sidecars(computer: Computer) -> None:
    bench, other = await computer.start("m1"), await computer.start("m2")
    address = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    sidecar: JSON = {
        "name": "holdfast-sidecar",
        "image": "any",
        "command": ["python", "-c", SIDECAR_CODE],
        "restartPolicy": "Always",
        "env": [{"name": "HOLDFAST_JOB_UID", "value": "job-1"}, address],
        "startupProbe": {"tcpSocket": {"port": 8470}, "periodSeconds": 1, "failureThreshold": 60},
    }
    key = await bench.start(shell("sleep 1000"), initContainers=[sidecar])
    await bench.phase(key, "Running")
    deadline = (now() + timedelta(seconds=300)).replace(microsecond=0)
    computer.machines.announce("m1", deadline)

    def is_marked(node: Document) -> bool:
        return any(each["key"] == PREEMPTED for each in node.spec.get("taints", []))

    node = await until(computer.cluster, NODES, Key("", "m1"), is_marked, "it is marked")
    [condition] = [each for each in node.status["conditions"] if each["type"] == PREEMPTED]
    assert (condition["status"], condition["reason"]) == ("True", "PreemptionNotice")
    assert condition["message"].startswith(f"holdfast up takes this node back at {deadline:%Y-%m-%dT%H:%M:%SZ}, ")
    assert any(each["type"] == "Ready" and each["status"] == "True" for each in node.status["conditions"])

    async def log() -> bytes:
        return await bench.machine.pod_log(key, container="holdfast-sidecar")

    told = (await eventually(log, bool, what="the sidecar is told")).decode().splitlines()[0]
    path, _, body = told.partition(" ")
    assert path == "/job-1/notice"
    assert json.loads(body) == {"node": "m1", "deadline": deadline.timestamp()}
    events = await listed(computer.cluster, EVENTS, "default", lambda them: len(them) > 0, "an event")
    assert [each.metadata.name.rpartition(".")[0] for each in events] == ["m1"]
    assert not is_marked(await computer.node(other.node))


async def test_a_machine_that_is_killed_leaves_its_node_and_nothing_else(computer: Computer, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    bench, other, own = await computer.start("m1"), await computer.start("m2"), computer.bench(OWN)
    keys = {each: await each.start(shell(signalled(saved)), name=f"pod-{each.node}") for each in (bench, other, own)}
    for each, key in keys.items():
        await each.logged(key, "up")
    pods = {each: await computer.cluster.get(PODS, key) for each, key in keys.items()}
    await computer.machines.kill("m1")
    assert bench.processes(pods[bench]) == []
    assert not saved.exists()
    assert not (computer.data / "machines" / "m1").exists()
    assert computer.machines.kubelet("m1") is None
    assert (await computer.cluster.get(PODS, keys[bench])).status["phase"] == "Running", "nobody has reported its end"
    assert (await computer.node("m1")).metadata.name == "m1"
    for each in (other, own):
        assert each.processes(pods[each])
    await computer.machines.kill("m1")


async def test_what_a_crash_left_of_a_machine_ends_with_it(computer: Computer) -> None:
    folder = computer.data / "machines" / "m1"
    (folder / "pods").mkdir(parents=True)
    mark = {"HOLDFAST_MACHINE": identity_of(folder), "PATH": os.environ["PATH"]}
    orphan = await asyncio.create_subprocess_exec("sleep", "1000", env=mark)
    await computer.machines.kill("m1")
    assert await orphan.wait() == -9
    assert not folder.exists()


async def test_a_machine_that_starts_again_reports_the_pods_that_it_lost(computer: Computer) -> None:
    bench = await computer.start("m1")
    key = await bench.start(shell("sleep 1000"))
    pod = await bench.phase(key, "Running")
    await bench.machine.kill()
    again = Computer(computer.cluster, computer.data)
    try:
        await again.start("m1")
        lost = await bench.phase(key, "Failed")
        assert (lost.status["reason"], lost.metadata.uid) == ("NodeLost", pod.metadata.uid)
        assert (await again.start("m1")).machine is again.machines.kubelet("m1"), "it runs already"
    finally:
        await again.machines.stop()
        await again.own.stop()


async def test_a_node_that_can_not_start_leaves_nothing_running(computer: Computer) -> None:
    folder = computer.data / "machines"
    folder.mkdir()
    (folder / "m1").write_text("no folder")
    with pytest.raises(NodeNotStarted, match="m1"):
        await computer.machines.start(machine("m1"))
    assert computer.machines.kubelet("m1") is None
    (folder / "m1").unlink()
    await computer.start("m1")
