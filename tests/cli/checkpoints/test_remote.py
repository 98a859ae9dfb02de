"""Work that is done in a pod, because only a pod can mount the volume."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.checkpoints.manifest import CheckpointName, checkpoint_name
from holdfast.cli.checkpoints import pod as remote
from holdfast.cli.checkpoints.operations import (
    CheckpointInfo,
    Fact,
    ListRequest,
    PruneRequest,
    PruneResult,
    Request,
    VerifyRequest,
    VerifyResult,
    Which,
)
from holdfast.cli.checkpoints.pod import LABEL, PodAccess, PodWorkFailed
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import Session
from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import JOBS, PODS, TRAINING_JOBS
from holdfast.local.apiserver.http.app import serve
from holdfast.local.host import detect_hardware
from holdfast.local.up import local_cluster
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.objects.storage import checkpoint_storage
from tests.checkpoints.making import MODEL, content
from tests.cli.checkpoints.jobs import claim_job, fill_volume, volume_of
from tests.cli.conftest import real_lab
from tests.cli.lab import CommandLab
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually

IMAGE = "registry.invalid/holdfast:1"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[CommandLab]:
    """A cluster whose pods really run."""
    data = tmp_path / "box"
    async with (
        local_cluster(data, detect_hardware(0), limits=False) as box,
        serve(box.cluster, data, now=utc_now) as kubeconfig,
    ):
        client = connect(load_config(str(kubeconfig)), rng=Random(0), now=utc_now)
        try:
            yield CommandLab(client, kubeconfig, "default")
        finally:
            await client.close()


@pytest.fixture
async def real(control_plane: ControlPlane) -> AsyncIterator[CommandLab]:
    """With a node, for the pod that the command makes."""
    async with real_lab(control_plane) as lab:
        await lab.node()
        yield lab


async def in_pod(lab: CommandLab, name: str, image: str = IMAGE) -> PodAccess:
    job = await lab.cluster.get(TRAINING_JOBS, Key(lab.namespace, name))
    assert isinstance(lab.cluster, KubernetesCluster)
    kept = checkpoint_storage(job)
    assert kept is not None
    return PodAccess(Session(cluster=lab.cluster, namespace=lab.namespace, now=utc_now), job, kept, image)


async def told(backend: PodAccess, request: Request) -> list[Fact]:
    async with asyncio.timeout(120), aclosing(backend.run_request(request)) as facts:
        return [fact async for fact in facts]


async def pods(lab: CommandLab, name: str) -> list[str]:
    found = await lab.cluster.list(PODS, namespace=lab.namespace, labels=f"{LABEL}={name}")
    return [pod.metadata.name for pod in found.items if not pod.metadata.deletion_timestamp]


async def the_pod(lab: CommandLab, name: str) -> Key:
    (found,) = await eventually(lambda: pods(lab, name), lambda there: len(there) == 1, what="a pod looks at it")
    return Key(lab.namespace, found)


async def whole(lab: CommandLab, key: Key) -> JSON:
    return (await lab.cluster.get(find_kind("pods").resource, key)).document


async def suspended_job(lab: CommandLab, name: str) -> TrainingJob:
    """Nothing runs but what the commands start."""
    await claim_job(lab, name, {}, suspend=True)
    return await lab.cluster.get(TRAINING_JOBS, Key(lab.namespace, name))


async def test_the_work_is_done_in_a_pod_that_is_gone_afterwards(machine: CommandLab) -> None:
    job = await suspended_job(machine, "digits")
    fill_volume(await volume_of(machine, "digits"), *(checkpoint_name(epoch, 0) for epoch in (1, 2, 3)))
    backend = await in_pod(machine, "digits")
    uid = job.metadata.uid
    listed = await told(backend, ListRequest(job=uid, attempt=0, running=False))
    assert [(one.epoch, one.resumes) for one in listed if isinstance(one, CheckpointInfo)] == [
        (3, True),
        (2, False),
        (1, False),
    ]
    (verified,) = await told(backend, VerifyRequest(epoch=2))
    assert isinstance(verified, VerifyResult)
    assert (verified.saved.bytes, verified.damage) == (9, ())
    gone = await told(backend, PruneRequest(job=uid, attempt=0, keep=1, delete=True))
    assert [(one.saved.epoch, one.deleted) for one in gone if isinstance(one, PruneResult)] == [(1, True), (2, True)]
    assert len(await told(backend, ListRequest(job=uid, attempt=0, running=False))) == 1
    assert await pods(machine, "digits") == []


async def test_an_error_in_the_pod_is_printed_by_the_command(machine: CommandLab) -> None:
    await suspended_job(machine, "digits")
    with pytest.raises(PodWorkFailed, match="there is no valid checkpoint of epoch 7"):
        await told(await in_pod(machine, "digits"), VerifyRequest(epoch=7))
    assert await pods(machine, "digits") == []


async def test_a_pod_that_ends_without_its_last_line_has_not_done_its_work(embedded: CommandLab) -> None:
    await claim_job(embedded, "short")
    work = asyncio.create_task(told(await in_pod(embedded, "short"), VerifyRequest()))
    key = await the_pod(embedded, "short")
    await embedded.cluster.patch_status(PODS, key, {"status": {"phase": "Running"}})
    with pytest.raises(PodWorkFailed, match="before its work was done: line 1 / line 2 / line 3"):
        await work
    assert await pods(embedded, "short") == []


async def test_a_pod_is_taken_away_when_the_command_is_interrupted(embedded: CommandLab) -> None:
    await claim_job(embedded, "digits")
    work = asyncio.create_task(told(await in_pod(embedded, "digits"), VerifyRequest()))
    await the_pod(embedded, "digits")
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await pods(embedded, "digits") == []


async def test_an_image_that_cannot_be_pulled_is_reported_at_once(embedded: CommandLab) -> None:
    await claim_job(embedded, "digits")
    work = asyncio.create_task(told(await in_pod(embedded, "digits"), VerifyRequest()))
    key = await the_pod(embedded, "digits")
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}}
    container = {"name": "checkpoints", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "containerStatuses": [{**container, "state": state}]}
    await embedded.cluster.patch_status(PODS, key, {"status": status})
    with pytest.raises(
        PodWorkFailed, match=rf"pod {key} of image {IMAGE}, .* ImagePullBackOff: no such host; another image"
    ):
        await work
    assert await pods(embedded, "digits") == []


async def test_a_pod_that_fits_on_no_node_is_given_up_in_the_end(
    embedded: CommandLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "START_S", 2.0)
    await claim_job(embedded, "digits")
    work = asyncio.create_task(told(await in_pod(embedded, "digits"), VerifyRequest()))
    key = await the_pod(embedded, "digits")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    await embedded.cluster.patch_status(PODS, key, {"status": {"phase": "Pending", "conditions": [condition]}})
    with pytest.raises(PodWorkFailed, match="did not start: 0/3 nodes"):
        await work
    assert await pods(embedded, "digits") == []


async def test_the_image_is_that_of_the_newest_workers_sidecar(embedded: CommandLab) -> None:
    await claim_job(embedded, "digits")
    backend = await in_pod(embedded, "digits", image="")
    with pytest.raises(PodWorkFailed, match=r"no workers left to take its image from: name one .* with --image"):
        await told(backend, VerifyRequest())
    trainer = {"name": "trainer", "image": "t"}
    sidecar = {"name": "holdfast-sidecar", "image": IMAGE, "restartPolicy": "Always"}
    spec = {"restartPolicy": "Never", "containers": [trainer], "initContainers": [sidecar]}
    labels = {"training-job": "digits"}
    body = {"metadata": {"name": "digits-training", "labels": labels}, "spec": {"template": {"spec": spec}}}
    await embedded.cluster.create(JOBS, body, namespace=embedded.namespace)
    work = asyncio.create_task(told(backend, VerifyRequest()))
    document = await whole(embedded, await the_pod(embedded, "digits"))
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert document["spec"]["containers"][0]["image"] == IMAGE


async def test_a_checkpoint_comes_out_of_a_pod_through_a_real_api_server(
    real: CommandLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, commands in a fake container run on this machine."""
    volume = tmp_path / "volume"
    large = {**MODEL, "large.bin": bytes(range(256)) * 8192}
    fill_volume(volume, checkpoint_name(1, 0))
    fill_volume(volume, checkpoint_name(2, 0), files=large)
    kept = {"type": "nfs", "nfsServer": "files.invalid", "nfsPath": "/export"}
    await real.job("digits", checkpoint={"storage": kept})
    monkeypatch.setattr(remote, "FOLDER", str(volume))
    monkeypatch.setattr(remote, "HAND_OUT", (sys.executable, "-m", "holdfast", "checkpoints", "hand-out"))
    backend = await in_pod(real, "digits")
    name, manifest = await backend.download(Which(), into(tmp_path / "newest"))
    assert (name, len(manifest.files)) == (checkpoint_name(2, 0), 4)
    assert content(tmp_path / "newest") == large
    assert (await backend.download(Which(epoch=1), into(tmp_path / "first")))[0] == checkpoint_name(1, 0)
    assert content(tmp_path / "first") == MODEL
    assert await pods(real, "digits") == []


def into(folder: Path) -> Callable[[CheckpointName], Path]:
    return lambda _name: folder


async def test_a_pod_without_output_is_described_by_how_it_ended(embedded: CommandLab) -> None:
    await claim_job(embedded, "silent")
    work = asyncio.create_task(told(await in_pod(embedded, "silent"), VerifyRequest()))
    key = await the_pod(embedded, "silent")
    end = {"exitCode": 128, "reason": "StartError", "message": '"holdfast": executable file not found'}
    container = {"name": "checkpoints", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [{**container, "state": {"terminated": end}}]}
    await embedded.cluster.patch_status(PODS, key, {"status": status})
    with pytest.raises(
        PodWorkFailed, match='before its work was done: StartError "holdfast": executable file not found'
    ):
        await work
