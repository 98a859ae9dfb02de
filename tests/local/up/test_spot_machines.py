"""Machines of `holdfast up`: a ProvisionedInstance becomes a node of this computer, and is taken back on command."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.meta import Key, is_true
from holdfast.api.provisionedinstance import MACHINE_FINALIZER, ProvisionedInstance, machine_name
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import (
    LEASES,
    NAMESPACES,
    NODES,
    PROVISIONED_INSTANCES,
    SPOT_INSTANCE_JOBS,
    SPOT_INSTANCE_VMS,
)
from holdfast.local.host import Hardware
from holdfast.local.kubelet.node import LEASE_NAMESPACE
from holdfast.local.up import LocalCluster, local_cluster
from holdfast.pods.failure import has_preemption_notice
from holdfast.providers.local.provider import SpotMarket
from holdfast.providers.local.trace import parse_trace
from tests.contract.kinds import PODS
from tests.contract.waiting import gone, until

NAMESPACE = "default"
COMPUTER = Hardware(cpus=8, memory_mib=16 * 1024, gpus=0)
ZONE = "us-central1-a"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def box(data: Path) -> AsyncIterator[LocalCluster]:
    async with local_cluster(data, COMPUTER, limits=False) as box:
        yield box


async def template(box: LocalCluster, *, sold_out: str = "", **gcp: object) -> None:
    spec: JSON = {
        "vmImage": "pretended",
        "gpu": {"type": "nvidia-l4", "count": 1},
        "gcp": {"project": "my-project", "zone": ZONE, "machineType": "g2-standard-4", **gcp},
    }
    annotations = {"holdfast.dev/sold-out": sold_out} if sold_out else {}
    body = {"metadata": {"name": "l4", "annotations": annotations}, "spec": spec}
    await box.cluster.create(SPOT_INSTANCE_VMS, body, namespace=NAMESPACE)


async def order(box: LocalCluster, name: str = "m0", **spec: object) -> str:
    """The name of the machine of a new ProvisionedInstance."""
    written: JSON = {"vmRef": {"name": "l4"}, "zone": ZONE, "project": "my-project", **spec}
    # A credential that is not there: on one machine none is needed.
    written["credentialsSecretRef"] = {"name": "gcp-credentials"}
    body = {"metadata": {"name": name}, "spec": written}
    made = await box.cluster.create(PROVISIONED_INSTANCES, body, namespace=NAMESPACE)
    return machine_name(made.metadata.uid)


def holds(instance: ProvisionedInstance, condition: str) -> bool:
    return instance.status is not None and is_true(instance.status.conditions, condition)


async def until_holds(box: LocalCluster, condition: str, name: str = "m0") -> ProvisionedInstance:
    key = Key(NAMESPACE, name)
    return await until(box.cluster, PROVISIONED_INSTANCES, key, lambda it: holds(it, condition), f"is {condition}")


async def preempt(box: LocalCluster, notice: str, name: str = "m0") -> None:
    change = {"metadata": {"annotations": {"holdfast.dev/preempt": notice}}}
    await box.cluster.patch(PROVISIONED_INSTANCES, Key(NAMESPACE, name), change)


async def test_a_machine_joins_by_itself_without_a_credential_and_is_given_back(box: LocalCluster, data: Path) -> None:
    await template(box)
    machine = await order(box)
    ready = await until_holds(box, "GPUReady")
    assert ready.status is not None
    assert (ready.status.node_name, ready.status.phase, ready.status.state) == (machine, "Serve", "RUNNING")
    assert MACHINE_FINALIZER in ready.metadata.finalizers
    node = await box.cluster.get(NODES, Key("", machine))
    assert node.is_ready
    assert (data / "machines" / machine).is_dir()
    await box.cluster.delete(PROVISIONED_INSTANCES, Key(NAMESPACE, "m0"))
    await gone(box.cluster, PROVISIONED_INSTANCES, Key(NAMESPACE, "m0"))
    await gone(box.cluster, NODES, Key("", machine))
    await gone(box.cluster, LEASES, Key(LEASE_NAMESPACE, machine))
    assert list((data / "machines").iterdir()) == []


async def test_a_machine_that_is_taken_back_gets_its_notice_is_marked_and_then_gone_with_all_that_ran_on_it(
    box: LocalCluster, data: Path
) -> None:
    await template(box)
    machine = await order(box)
    await until_holds(box, "GPUReady")
    pod = {
        "nodeName": machine,
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "any", "command": ["sleep", "1000"]}],
    }
    await box.cluster.create(PODS, {"metadata": {"name": "there"}, "spec": pod}, namespace=NAMESPACE)
    there = Key(NAMESPACE, "there")
    await until(box.cluster, PODS, there, lambda it: it.status.get("phase") == "Running", "runs")
    await preempt(box, "3s")
    told = await until_holds(box, "Preempted")
    assert told.status is not None
    assert told.status.preemption_notice
    assert has_preemption_notice(await box.cluster.get(NODES, Key("", machine)))
    assert told.status.state == "RUNNING", "it has its notice"
    await gone(box.cluster, NODES, Key("", machine))
    await gone(box.cluster, PODS, there)
    ended = await until(
        box.cluster,
        PROVISIONED_INSTANCES,
        Key(NAMESPACE, "m0"),
        lambda it: it.status is not None and it.status.state == "TERMINATED",
        "is terminated",
    )
    assert holds(ended, "Preempted")
    assert not (data / "machines" / machine).exists()
    cluster_uid = (await box.cluster.get(NAMESPACES, Key("", "kube-system"))).metadata.uid
    assert (await box.machines.list(cluster_uid)).machines == ()


async def test_a_zone_without_machines_is_said_so(box: LocalCluster) -> None:
    await template(box, sold_out=ZONE)
    await order(box)
    refused = await until(
        box.cluster,
        PROVISIONED_INSTANCES,
        Key(NAMESPACE, "m0"),
        lambda it: it.status is not None and f"zone {ZONE} has no machine to spare" in str(it.status.conditions),
        "is refused",
    )
    assert not holds(refused, "Launched")


async def test_a_job_that_is_to_be_saved_as_memory_is_refused_since_no_containers_are_run(box: LocalCluster) -> None:
    container = {"name": "main", "image": "any", "command": ["sleep", "1000"]}
    spec = {
        "spotInstanceVMRef": {"name": "none"},
        "gcpCredentialsSecretRef": {"name": "none"},
        "checkpointConfig": {
            "checkpointImageRepo": "registry.example.com/team/checkpoints",
            "checkpointInterval": "30m",
            "mode": "container",
        },
        "jobTemplate": {"spec": {"template": {"spec": {"containers": [container]}}}},
    }
    await box.cluster.create(SPOT_INSTANCE_JOBS, {"metadata": {"name": "memory"}, "spec": spec}, namespace=NAMESPACE)
    failed = await until(
        box.cluster,
        SPOT_INSTANCE_JOBS,
        Key(NAMESPACE, "memory"),
        lambda it: it.status is not None and it.status.phase == "Failed",
        "is refused",
    )
    assert failed.status is not None
    assert "on one machine no containers are run" in (failed.status.message or "")


async def test_the_next_start_goes_on_with_its_machines(data: Path) -> None:
    async with local_cluster(data, COMPUTER, limits=False) as box:
        await template(box)
        machine = await order(box)
        await until_holds(box, "GPUReady")
        node = await box.cluster.get(NODES, Key("", machine))
    async with local_cluster(data, COMPUTER, limits=False) as box:
        again = await box.cluster.get(NODES, Key("", machine))
        assert again.metadata.uid == node.metadata.uid
        assert again.is_ready
        assert holds(await until_holds(box, "GPUReady"), "Joined")
        assert (data / "machines" / machine).is_dir()


async def test_a_log_of_spot_machines_takes_them_back(data: Path) -> None:
    market = SpotMarket(notice_s=1, trace=parse_trace("0,add,node1\n2000,remove,node1"))
    async with local_cluster(data, COMPUTER, limits=False, market=market) as box:
        await template(box)
        machine = await order(box)
        await until_holds(box, "Preempted")
        await gone(box.cluster, NODES, Key("", machine))
