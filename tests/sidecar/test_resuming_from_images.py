"""A sidecar whose job resumes from an image: before the training starts, it is there and verified, or waited for."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from holdfast.api.reports import UNUSABLE_IMAGE
from holdfast.checkpoints.images.layer import CheckpointLayer
from holdfast.checkpoints.images.reference import run_tag
from holdfast.checkpoints.images.registry import PushedImage, push_image
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.local.registry.server import serve_registry
from tests.checkpoints.images.test_image import FACTS
from tests.checkpoints.images.test_layer import checkpoint
from tests.checkpoints.images.test_reference import AT
from tests.local.registry.registries import client
from tests.sidecar.operators import OperatorDouble, until
from tests.sidecar.pods import Pod, ended

REPOSITORY = "team/checkpoints"
# The checkpoints of `checkpoint`.
EPOCH = 3


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[OperatorDouble]:
    async with OperatorDouble(tmp_path).serving() as serving:
        yield serving


async def pushed_run(tmp_path: Path, host: str, run: int) -> PushedImage:
    source = tmp_path / f"source-{run}"
    manifest = checkpoint(source, {"model.bin": f"weights of run {run}".encode() * 1000})
    facts = msgspec.structs.replace(FACTS, mode="application", run=run)
    async with client(host) as registry:
        layer = CheckpointLayer(source, manifest)
        return await push_image(registry, REPOSITORY, run_tag("n", "main", run, AT), facts, layer)


def resuming(tmp_path: Path, operator: OperatorDouble, host: str, address: str, **more: str) -> Pod:
    environ = {"HOLDFAST_RESUME_FROM": address, "HOLDFAST_PLAIN_HTTP_REGISTRIES": f"other:5000,{host}", **more}
    return Pod(tmp_path / "volume", tmp_path / "local", operator, environ=environ)


async def test_the_training_finds_the_checkpoint_of_the_image_and_the_next_attempt_does_too(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with serve_registry(tmp_path / "registry") as host:
        pushed = await pushed_run(tmp_path, host, 7)
        async with resuming(tmp_path, operator, host, f"oci://{pushed.reference}") as pod:
            sidecar = await pod.sidecar()
            await pod.answers("/started", 200)
            assert (pod.resume_from / "model.bin").read_bytes() == b"weights of run 7" * 1000
            await until(lambda: any(batch.resumed for batch in operator.batches))
            await ended(sidecar)
    (resumed,) = [batch.resumed for batch in operator.batches if batch.resumed]
    assert resumed.path == f"oci://{host}/{REPOSITORY}@{pushed.digest}"
    # As a checkpoint of this job: the manifest is its own, though the image was of a later attempt.
    found = VolumeStore(tmp_path / "volume").manifest(CheckpointName(EPOCH, 0, f"checkpoint-epoch-{EPOCH}"))
    assert found is not None
    assert (found.attempt, found.about.name) == (0, "digits")
    # The registry is gone by now, and nobody asks it again.
    async with Pod(tmp_path / "volume", tmp_path / "local-1", operator, attempt=1) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert (pod.resume_from / "model.bin").read_bytes() == b"weights of run 7" * 1000


async def test_a_damaged_image_is_reported_and_the_one_before_it_is_used(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with serve_registry(tmp_path / "registry") as host:
        first, second = [await pushed_run(tmp_path, host, run) for run in (6, 7)]
        name = second.layer.digest.removeprefix("sha256:")
        blob = tmp_path / "registry" / "blobs" / "sha256" / name[:2] / name
        blob.write_bytes(blob.read_bytes().replace(b"weights", b"weighed"))
        async with resuming(tmp_path, operator, host, f"oci://{second.reference}") as pod:
            await pod.sidecar()
            await pod.answers("/started", 200)
            assert (pod.resume_from / "model.bin").read_bytes() == b"weights of run 6" * 1000
            await until(lambda: operator.outcomes("quarantined"))
            (told,) = [entry for entry in operator.checkpoints if entry.outcome == "quarantined"]
            assert told.path == f"oci://{host}/{REPOSITORY}@{second.digest}"
            assert "digest" in told.reason
            await until(lambda: any(batch.resumed for batch in operator.batches))
    (resumed,) = [batch.resumed for batch in operator.batches if batch.resumed]
    assert resumed.path.endswith(first.digest)


async def test_a_registry_that_is_down_is_waited_for_and_the_job_is_told(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with serve_registry(tmp_path / "registry") as host:
        pushed = await pushed_run(tmp_path, host, 7)
    async with resuming(tmp_path, operator, host, f"oci://{pushed.reference}") as pod:
        await pod.sidecar()
        await until(lambda: operator.outcomes("unrestored"))
        (told,) = [entry for entry in operator.checkpoints if entry.outcome == "unrestored"]
        assert told.path == f"oci://{pushed.reference}"
        assert (await pod.ask("/started"))[0] == 503
        async with serve_registry(tmp_path / "registry"):
            await pod.answers("/started", 200)
            assert (pod.resume_from / "model.bin").exists()


def saved_before(tmp_path: Path, epoch: int, *, is_damaged: bool = False) -> None:
    """A checkpoint that the job itself has, of an earlier attempt."""
    name = CheckpointName(epoch, 0, f"checkpoint-epoch-{epoch}")
    folder = tmp_path / "volume" / name.folder
    checkpoint(folder, {"model.bin": b"weights of its own"})
    VolumeStore(tmp_path / "volume").put(name, folder, SaveInfo("uid-1", "2026-01-01T00:00:00Z"))
    if is_damaged:
        (folder / "model.bin").write_bytes(b"weights of its 0wn")


@pytest.mark.parametrize(
    ("own_epoch", "is_damaged", "settings", "expected"),
    [
        pytest.param(EPOCH - 1, False, {"HOLDFAST_RESUME_NEWEST": "true"}, b"weights of run 7", id="further"),
        pytest.param(EPOCH + 1, False, {"HOLDFAST_RESUME_NEWEST": "true"}, b"weights of its own", id="not as far"),
        pytest.param(EPOCH + 1, True, {"HOLDFAST_RESUME_NEWEST": "true"}, b"weights of run 7", id="own one is damaged"),
        pytest.param(EPOCH + 1, False, {"HOLDFAST_RESUME_EXACTLY": "true"}, b"weights of run 7", id="one image back"),
        pytest.param(EPOCH - 1, False, {}, b"weights of its own", id="of another training"),
    ],
)
async def test_an_image_of_the_same_training_counts_where_it_is_further_than_the_jobs_own_checkpoint(
    tmp_path: Path,
    operator: OperatorDouble,
    own_epoch: int,
    is_damaged: bool,
    settings: dict[str, str],
    expected: bytes,
) -> None:
    saved_before(tmp_path, own_epoch, is_damaged=is_damaged)
    async with serve_registry(tmp_path / "registry") as host:
        pushed = await pushed_run(tmp_path, host, 7)
        environ = {
            "HOLDFAST_RESUME_FROM": f"oci://{pushed.reference.by_digest(pushed.digest)}",
            "HOLDFAST_PLAIN_HTTP_REGISTRIES": host,
            **settings,
        }
        async with Pod(tmp_path / "volume", tmp_path / "local", operator, attempt=1, environ=environ) as pod:
            await pod.sidecar()
            await pod.answers("/started", 200)
            assert (pod.resume_from / "model.bin").read_bytes().startswith(expected)


async def test_a_damaged_image_does_not_keep_a_job_from_its_own_checkpoint(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    saved_before(tmp_path, EPOCH - 1)
    async with serve_registry(tmp_path / "registry") as host:
        pushed = await pushed_run(tmp_path, host, 7)
        name = pushed.layer.digest.removeprefix("sha256:")
        blob = tmp_path / "registry" / "blobs" / "sha256" / name[:2] / name
        blob.write_bytes(blob.read_bytes().replace(b"weights", b"weighed"))
        environ = {
            "HOLDFAST_RESUME_FROM": f"oci://{pushed.reference.by_digest(pushed.digest)}",
            "HOLDFAST_PLAIN_HTTP_REGISTRIES": host,
            "HOLDFAST_RESUME_NEWEST": "true",
        }
        async with Pod(tmp_path / "volume", tmp_path / "local", operator, attempt=1, environ=environ) as pod:
            await pod.sidecar()
            await pod.answers("/started", 200)
            assert (pod.resume_from / "model.bin").read_bytes() == b"weights of its own"
            await until(lambda: operator.outcomes("quarantined"))


async def test_folders_of_the_sidecar_can_be_written_to_by_any_user_where_the_operator_says_so(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "local", operator, environ={"HOLDFAST_ANY_USER": "true"}) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert pod.checkpoint_dir.stat().st_mode & 0o777 == 0o777


async def test_an_image_that_is_not_there_ends_the_sidecar_with_that_reason(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with (
        serve_registry(tmp_path / "registry") as host,
        resuming(tmp_path, operator, host, f"oci://{host}/{REPOSITORY}:never") as pod,
    ):
        sidecar = await pod.sidecar()
        await until(lambda: sidecar.returncode is not None)
        last_word = json.loads(pod.message.read_text())
        assert last_word["reason"] == UNUSABLE_IMAGE
        assert "never" in last_word["message"]


async def test_a_damaged_image_with_none_before_it_ends_the_sidecar_with_that_reason(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with serve_registry(tmp_path / "registry") as host:
        pushed = await pushed_run(tmp_path, host, 7)
        name = pushed.layer.digest.removeprefix("sha256:")
        blob = tmp_path / "registry" / "blobs" / "sha256" / name[:2] / name
        blob.write_bytes(blob.read_bytes().replace(b"weights", b"weighed"))
        async with resuming(tmp_path, operator, host, f"oci://{pushed.reference}") as pod:
            sidecar = await pod.sidecar()
            await until(lambda: sidecar.returncode is not None)
            last_word = json.loads(pod.message.read_text())
    assert last_word["reason"] == UNUSABLE_IMAGE
    assert pushed.digest in last_word["message"]
