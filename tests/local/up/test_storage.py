"""Claims on one machine: a folder each, which outlives the pods and goes with the claim."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import PODS
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.local.host import detect_hardware
from holdfast.local.up import local_cluster
from tests.contract.kinds import CLAIMS
from tests.contract.waiting import gone, until

DATA = Key("default", "data")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with local_cluster(tmp_path / "box", detect_hardware(0), limits=False) as box:
        yield box.cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "box" / "volumes" / "default" / "data"


async def claim(cluster: EmbeddedCluster) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(CLAIMS, {"metadata": {"name": "data"}, "spec": spec}, namespace="default")


def pod(name: str, script: str) -> JSON:
    mounts = [{"name": "data", "mountPath": "/data"}]
    container = {"name": "main", "image": "any", "command": ["sh", "-c", script], "volumeMounts": mounts}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 1}}


def is_there(folder: Path) -> bool:
    return folder.exists()


async def phase(cluster: EmbeddedCluster, name: str, wanted: str) -> None:
    await until(cluster, PODS, Key("default", name), lambda it: it.status.phase == wanted, f"is {wanted}")


async def test_a_pod_waits_for_its_claim_and_finds_its_folder(cluster: EmbeddedCluster, folder: Path) -> None:
    await cluster.create(PODS, pod("one", "echo kept > /data/file"), namespace="default")
    await until(
        cluster,
        PODS,
        Key("default", "one"),
        lambda it: 'persistentvolumeclaim "data" not found' in str(it.status.conditions),
        "says what it waits for",
    )
    await claim(cluster)
    await phase(cluster, "one", "Succeeded")
    assert (folder / "file").read_text() == "kept\n"
    assert (await cluster.get(CLAIMS, DATA)).status["phase"] == "Bound"


async def test_a_claim_and_its_folder_go_when_the_last_pod_is_gone(cluster: EmbeddedCluster, folder: Path) -> None:
    await claim(cluster)
    await cluster.create(PODS, pod("one", "echo mine > /data/file; sleep 1000"), namespace="default")
    await phase(cluster, "one", "Running")
    await cluster.delete(CLAIMS, DATA)
    await cluster.create(PODS, pod("late", "true"), namespace="default")
    await until(
        cluster,
        PODS,
        Key("default", "late"),
        lambda it: 'persistentvolumeclaim "data" is being deleted' in str(it.status.conditions),
        "is not given it any more",
    )
    assert is_there(folder)
    await cluster.delete(PODS, Key("default", "one"))
    await gone(cluster, CLAIMS, DATA)
    assert not is_there(folder)


async def test_a_new_claim_of_an_old_name_is_empty(cluster: EmbeddedCluster, folder: Path) -> None:
    for name in ("first", "second"):
        await claim(cluster)
        await cluster.create(PODS, pod(name, "test ! -e /data/file && touch /data/file"), namespace="default")
        await phase(cluster, name, "Succeeded")
        await cluster.delete(PODS, Key("default", name))
        await cluster.delete(CLAIMS, DATA)
        await gone(cluster, CLAIMS, DATA)
        assert not is_there(folder)
