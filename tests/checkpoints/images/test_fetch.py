"""A checkpoint that is an image: fetched, verified and unpacked, or the one before it where it is damaged."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoints.errors import CheckpointNotFound
from holdfast.checkpoints.images import fetch, newest
from holdfast.checkpoints.images.errors import ImageError, ImageNotFound, RegistryError, RegistryUnreachable
from holdfast.checkpoints.images.fetch import FetchedImage, fetch_image, read_secrets
from holdfast.checkpoints.images.image import BytesBlob, Mode
from holdfast.checkpoints.images.layer import CheckpointLayer
from holdfast.checkpoints.images.reference import run_tag
from holdfast.checkpoints.images.registry import PushedImage, RegistryClient, push_image
from holdfast.checkpoints.manifest import CheckpointManifest, SaveInfo
from holdfast.local.registry.server import serve_registry
from tests.checkpoints.images.registries import PASSWORD, USER, RunningRegistry
from tests.checkpoints.images.test_image import FACTS
from tests.checkpoints.images.test_layer import checkpoint
from tests.checkpoints.images.test_reference import AT
from tests.local.registry.registries import client

REPOSITORY = "team/checkpoints"
ABOUT = SaveInfo("uid-of-the-new-job", "2026-11-18T12:00:00Z", 1, "ml", "new")


class Images:
    """A registry with images of several runs, each of a checkpoint of its own."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder = folder
        self.host = host
        self.pushed: dict[int, PushedImage] = {}

    async def push(self, run: int, *, uid: str = "uid-1", mode: Mode = "application", container: str = "main") -> None:
        source = self.folder / f"source-{uid}-{run}"
        manifest = checkpoint(source, {"model.bin": f"weights of run {run}".encode() * 1000, "a/b": b"x"})
        facts = msgspec.structs.replace(FACTS, run=run, owner_uid=uid, mode=mode, container=container)
        async with client(self.host) as registry:
            self.pushed[run] = await push_image(
                registry, REPOSITORY, run_tag("n", container, run, AT), facts, CheckpointLayer(source, manifest)
            )

    def blob(self, run: int) -> Path:
        name = self.pushed[run].layer.digest.removeprefix("sha256:")
        return self.folder / "registry" / "blobs" / "sha256" / name[:2] / name

    def by_digest(self, run: int) -> str:
        return f"oci://{self.host}/{REPOSITORY}@{self.pushed[run].digest}"

    def by_tag(self, run: int) -> str:
        return f"oci://{self.pushed[run].reference}"

    async def fetched(self, address: str) -> FetchedImage:
        return await asyncio.to_thread(partial(fetch_image, address, self.backend, plain_http=(self.host,)))

    def backend(self, found: CheckpointManifest) -> tuple[Path, CheckpointManifest]:
        return self.target, replace(found, attempt=0, about=ABOUT)

    @property
    def target(self) -> Path:
        return self.folder / "attempt-0" / "checkpoint-epoch-3"

    @property
    def model(self) -> bytes:
        return (self.target / "model.bin").read_bytes()


@pytest.fixture
async def images(tmp_path: Path) -> AsyncIterator[Images]:
    (tmp_path / "attempt-0").mkdir()
    async with serve_registry(tmp_path / "registry") as host:
        yield Images(tmp_path, host)


@pytest.mark.parametrize("named", ["by_digest", "by_tag"])
async def test_an_image_is_unpacked_as_a_checkpoint_of_the_job_that_resumes_from_it(images: Images, named: str) -> None:
    for run in (1, 2):
        await images.push(run)
    found = await images.fetched(getattr(images, named)(1))
    assert (found.address, found.refused) == (images.by_digest(1), ())
    assert images.model == b"weights of run 1" * 1000
    assert (found.manifest.about, found.manifest.attempt) == (ABOUT, 0)
    assert [path.name for path in images.target.parent.iterdir()] == [images.target.name]


@pytest.mark.parametrize("damage", ["tampered", "truncated", "longer", "missing"])
@pytest.mark.parametrize("named", ["by_digest", "by_tag"])
async def test_a_damaged_layer_is_refused_and_the_image_before_it_is_used(
    images: Images, named: str, damage: str
) -> None:
    await images.push(1)
    await images.push(4)
    await images.push(5, uid="uid-2")
    await images.push(6, container="other")
    await images.push(7)
    await images.push(8)
    content = images.blob(7).read_bytes()
    match damage:
        case "tampered":
            images.blob(7).write_bytes(content.replace(b"weights", b"weighed", 1))
        case "truncated":
            images.blob(7).write_bytes(content[:5000])
        case "longer":
            images.blob(7).write_bytes(content + b"x")
        case "missing":
            images.blob(7).unlink()
    found = await images.fetched(getattr(images, named)(7))
    assert found.address == images.by_digest(4), "the next lower run of the same owner and container"
    assert [each.address for each in found.refused] == [images.by_digest(7)]
    assert found.refused[0].reason
    assert images.model == b"weights of run 4" * 1000


async def test_images_before_it_are_looked_for_only_as_far_as_they_are_needed(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "BATCH", 1)
    for run in range(1, 6):
        await images.push(run)
    for run in (5, 4):
        images.blob(run).write_bytes(b"no archive")
    looked = []

    async def noted(registry: RegistryClient, repository: str, uid: str, tags: list[str]) -> list[newest.OwnedImage]:
        looked.extend(tags)
        return await newest.tagged_images(registry, repository, uid, tags)

    monkeypatch.setattr(fetch, "tagged_images", noted)
    found = await images.fetched(images.by_digest(5))
    assert found.address == images.by_digest(3)
    assert looked == [run_tag("n", "main", run, AT) for run in (4, 3)]


async def test_where_no_image_can_be_used_nothing_is_left_and_each_is_named(images: Images) -> None:
    for run in (1, 2):
        await images.push(run)
        images.blob(run).write_bytes(b"no archive")
    with pytest.raises(CheckpointNotFound, match="none of the 2 images") as refused:
        await images.fetched(images.by_tag(2))
    assert images.by_digest(1) in str(refused.value)
    assert list(images.target.parent.iterdir()) == []


async def test_a_container_checkpoint_and_a_foreign_image_are_refused(images: Images) -> None:
    await images.push(1, mode="container")
    with pytest.raises(ImageError, match="in the mode application"):
        await images.fetched(images.by_tag(1))
    async with client(images.host) as registry:
        await registry.push_blob(REPOSITORY, BytesBlob(b"{}"))
        await registry.put_manifest(REPOSITORY, b'{"layers":[]}', "foreign")
    with pytest.raises(ImageError, match="in the mode application"):
        await images.fetched(f"oci://{images.host}/{REPOSITORY}:foreign")


async def test_a_missing_image_is_reported_as_missing(images: Images) -> None:
    with pytest.raises(ImageNotFound):
        await images.fetched(f"oci://{images.host}/{REPOSITORY}:never")


async def test_a_registry_that_does_not_answer_may_be_asked_later(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "REGISTRY_TIMEOUT_S", 0.2)
    async with serve_registry(images.folder / "other") as host:
        pass
    address = f"oci://{host}/{REPOSITORY}:t"
    with pytest.raises(RegistryUnreachable):
        await asyncio.to_thread(partial(fetch_image, address, images.backend, plain_http=(host,)))


async def test_no_registry_is_reached_without_tls_unless_it_is_listed(images: Images) -> None:
    with pytest.raises(RegistryError, match="does not speak TLS"):
        await asyncio.to_thread(fetch_image, f"oci://{images.host}/a:t", images.backend)


async def test_the_pull_secret_that_matches_the_registry_is_used(
    registry_server: RunningRegistry, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    manifest = checkpoint(source, {"model.bin": b"weights"})
    facts = msgspec.structs.replace(FACTS, mode="application")
    async with registry_server.client() as registry:
        pushed = await push_image(registry, REPOSITORY, "t1", facts, CheckpointLayer(source, manifest))
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    for number, host in enumerate(("elsewhere.example.com", registry_server.address.host)):
        config = {"auths": {host: {"auth": auth}}}
        (mounted / f"{number}.dockerconfigjson").write_text(json.dumps(config))
        (mounted / f"{number}.ca.crt").write_text(registry_server.ca_pem)
    (mounted / "..data").mkdir()
    target = tmp_path / "checkpoint-epoch-3"
    found = await asyncio.to_thread(
        partial(fetch_image, f"oci://{pushed.reference}", lambda read: (target, read), secrets=read_secrets(mounted))
    )
    assert found.address.endswith(pushed.digest)
    assert (target / "model.bin").read_bytes() == b"weights"
