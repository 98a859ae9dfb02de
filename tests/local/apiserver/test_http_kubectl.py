"""The real kubectl on the local API: what users of a cluster have in their fingers works here, too."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.local.apiserver.http.app import serve
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.runtime.process import utc_now
from tests.contract.kinds import TRAINING_JOBS
from tests.control_plane import kubectl
from tests.control_plane.kubectl import KubectlFailed

JOB = """\
apiVersion: ml.example.com/v1
kind: TrainingJob
metadata: {name: mnist}
spec: {model: cnn, dataset: mnist, numWorkers: 2, gpusPerWorker: 0}
"""
NAMED = "trainingjob.ml.example.com/mnist"
MNIST = Key("default", "mnist")


class Kubectl:
    def __init__(self, program: Path, kubeconfig: Path, cache: Path) -> None:
        self._program = program
        self._kubeconfig = kubeconfig
        self._cache = cache

    async def __call__(self, *arguments: str, text: str | None = None) -> str:
        return await asyncio.to_thread(kubectl.run, self._program, self._kubeconfig, self._cache, arguments, text)


@pytest.fixture
async def embedded() -> AsyncIterator[EmbeddedCluster]:
    async def said(_key: Key, _container: str, _tail: int | None, _limit: int | None) -> bytes:
        return b"line 1\n"

    cluster = await open_cluster(None, now=utc_now, rng=Random(0), pod_logs=said)
    yield cluster
    await cluster.close()


@pytest.fixture
async def run(embedded: EmbeddedCluster, binaries: Path, tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with serve(embedded, tmp_path, now=utc_now) as kubeconfig:
        yield Kubectl(binaries / "kubectl", kubeconfig, tmp_path / "cache")


async def test_a_training_job_is_applied_shown_scaled_and_deleted(run: Kubectl, embedded: EmbeddedCluster) -> None:
    assert await run("apply", "-f", "-", text=JOB) == f"{NAMED} created\n"
    assert await run("apply", "-f", "-", text=JOB) == f"{NAMED} unchanged\n"
    assert await run("apply", "-f", "-", text=JOB.replace("2,", "3,")) == f"{NAMED} configured\n"
    assert await run("scale", "tj/mnist", "--replicas=4") == f"{NAMED} scaled\n"
    status = {"status": {"state": "Running", "currentEpoch": 3}}
    await embedded.patch_status(TRAINING_JOBS, MNIST, status)
    header, row = (await run("get", "tj")).splitlines()
    assert header.split() == ["NAME", "STATE", "PROGRESS", "EPOCH", "AGE"]
    assert row.split()[:3] == ["mnist", "Running", "3"]
    assert NAMED in await run("get", "holdfast")
    assert json.loads(await run("get", "tj", "mnist", "-o", "json"))["spec"]["numWorkers"] == 4
    assert "deleted" in await run("delete", "tj", "mnist")
    assert await run("get", "tj", "-o", "name") == ""


async def test_a_training_job_is_described_explained_and_waited_for(run: Kubectl, embedded: EmbeddedCluster) -> None:
    await run("apply", "-f", "-", text=JOB)
    described = await run("describe", "tj", "mnist")
    assert "Num Workers:" in described
    assert "Events:" in described
    assert "How many workers" in await run("explain", "tj.spec.numWorkers")
    waiting = asyncio.create_task(run("wait", "tj/mnist", "--for=condition=Succeeded", "--timeout=100s"))
    condition = {
        "type": "Succeeded",
        "status": "True",
        "reason": "Done",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await embedded.patch_status(TRAINING_JOBS, MNIST, {"status": {"conditions": [condition]}})
    assert await waiting == f"{NAMED} condition met\n"


async def test_a_manifest_that_is_wrong_is_refused_with_the_field(run: Kubectl) -> None:
    with pytest.raises(KubectlFailed) as unknown:
        await run("apply", "-f", "-", text=JOB.replace("model:", "modle: x, model:"))
    assert 'unknown field "spec.modle"' in unknown.value.output
    with pytest.raises(KubectlFailed) as invalid:
        await run("apply", "-f", "-", text=JOB.replace("2,", "200,"))
    assert "spec.numWorkers: Invalid value: 200" in invalid.value.output


async def test_kubernetes_own_kinds_are_served_as_well(run: Kubectl) -> None:
    settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: '1'}\n"
    await run("apply", "-f", "-", text=settings)
    changed = await run("apply", "-f", "-", text=settings.replace("'1'", "'2'"))
    assert changed == "configmap/settings configured\n"
    await run("run", "one", "--image=registry.invalid/one", "--restart=Never")
    assert await run("logs", "one") == "line 1\n"
    assert "Server Version: v1." in await run("version")


async def test_kinds_that_kubectl_sends_as_protobuf_are_created_as_it_says(
    run: Kubectl, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.bin"
    picture.write_bytes(bytes(range(256)))
    assert await run("create", "namespace", "team-a") == "namespace/team-a created\n"
    made = await run(
        "create", "configmap", "settings", "-n", "team-a", "--from-literal=a=ü=1", f"--from-file={picture}"
    )
    assert made == "configmap/settings created\n"
    settings = json.loads(await run("get", "configmap", "settings", "-n", "team-a", "-o", "json"))
    assert settings["data"] == {"a": "ü=1"}
    assert base64.b64decode(settings["binaryData"]["picture.bin"]) == bytes(range(256))
    made = await run(
        "create", "secret", "generic", "keys", f"--from-file=p={picture}", "--from-literal=q=", "--type=t/t"
    )
    assert made == "secret/keys created\n"
    keys = json.loads(await run("get", "secret", "keys", "-o", "json"))
    assert keys["type"] == "t/t"
    assert keys["data"] == {"p": base64.b64encode(bytes(range(256))).decode(), "q": ""}
    assert await run("create", "serviceaccount", "worker") == "serviceaccount/worker created\n"
    assert (await run("get", "serviceaccount", "-o", "name")).splitlines()[-1] == "serviceaccount/worker"


async def test_other_kinds_that_kubectl_sends_as_protobuf_are_refused_with_the_command_that_works(run: Kubectl) -> None:
    with pytest.raises(KubectlFailed) as refused:
        await run("create", "deployment", "web", "--image=registry.invalid/web")
    assert "apps/v1 Deployment is not read as protobuf here" in refused.value.output
    assert "pipe it into kubectl apply -f -" in refused.value.output
    manifest = await run(
        "create", "deployment", "web", "--image=registry.invalid/web", "--dry-run=client", "-o", "yaml"
    )
    assert await run("apply", "-f", "-", text=manifest) == "deployment.apps/web created\n"
