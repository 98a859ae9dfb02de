"""Against Debian's docker-registry: images are pushed, found, fetched and deleted, with passwords and with tokens."""

import asyncio
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.errors import (
    DeletionUnsupported,
    DigestMismatch,
    ImageNotFound,
    PlainHttpRefused,
    RegistryError,
    RegistryUnauthorized,
)
from holdfast.checkpoints.images.image import (
    ZSTD_LAYER_TYPE,
    BytesBlob,
    Descriptor,
    file_blob,
    parse_manifest,
    sha256_digest,
)
from holdfast.checkpoints.images.layer import CheckpointLayer, compress_blob, unpack_layer
from holdfast.checkpoints.images.newest import expired_images, images_of, newest_run
from holdfast.checkpoints.images.reference import registry_address, run_tag, tag_prefix
from holdfast.checkpoints.images.registry import PushedImage, RegistryClient, push_image
from tests.checkpoints.images.archives import write_archive
from tests.checkpoints.images.registries import USER, RunningRegistry, TokenService, running_registry
from tests.checkpoints.images.test_image import FACTS
from tests.checkpoints.images.test_layer import FILES, checkpoint
from tests.checkpoints.images.test_reference import AT
from tests.checkpoints.making import content


def fresh_repository() -> str:
    return f"team/{uuid.uuid4().hex}"


async def fetched(client: RegistryClient, repository: str, blob: Descriptor) -> bytes:
    return b"".join([chunk async for chunk in client.blob(repository, blob)])


async def push_run(client: RegistryClient, repository: str, run: int, uid: str = "uid-1") -> PushedImage:
    facts = msgspec.structs.replace(FACTS, run=run, owner_uid=uid)
    return await push_image(client, repository, run_tag("n", "main", run, AT), facts, BytesBlob(b"archive"))


async def test_an_archive_is_pushed_as_an_image_and_comes_back(
    registry_server: RunningRegistry, tmp_path: Path
) -> None:
    archive, repository = write_archive(tmp_path / "a.tar"), fresh_repository()
    async with registry_server.client() as client:
        pushed = await push_image(client, repository, "t", FACTS, file_blob(archive))
        again = await push_image(client, repository, "t", FACTS, file_blob(archive))
        assert pushed == again, "the same archive and facts"
        assert await client.resolve_tag(repository, "t") == pushed.digest
        assert await client.resolve_tag(repository, "other") is None
        manifest = parse_manifest(await client.manifest(repository, pushed.digest), "t")
        assert manifest.layers == (pushed.layer,)
        assert await fetched(client, repository, pushed.layer) == archive.read_bytes()
        assert manifest.config is not None
        assert json.loads(await fetched(client, repository, manifest.config))["config"]["Labels"]
    assert str(pushed.reference) == f"{registry_server.address.host}/{repository}:t"
    assert registry_server.unfinished_uploads(repository) == []


async def test_an_application_checkpoint_is_pushed_compressed_and_restored(
    registry_server: RunningRegistry, tmp_path: Path
) -> None:
    layer = CheckpointLayer(tmp_path / "a", checkpoint(tmp_path / "a"))
    diff_id, repository = compress_blob(layer, tmp_path / "z"), fresh_repository()
    facts = msgspec.structs.replace(FACTS, mode="application")
    async with registry_server.client() as client:
        for blob, media_type in ((layer, ""), (file_blob(tmp_path / "z"), ZSTD_LAYER_TYPE)):
            options = {"media_type": media_type, "diff_id": diff_id} if media_type else {}
            pushed = await push_image(client, repository, "t", facts, blob, **options)
            chunks = [chunk async for chunk in client.blob(repository, pushed.layer)]
            await asyncio.to_thread(unpack_layer, chunks, pushed.layer, tmp_path / "b")
            assert content(tmp_path / "b") == FILES


async def test_a_wrong_password_is_refused_and_not_shown(registry_server: RunningRegistry) -> None:
    async with registry_server.client("wr0ng") as client:
        with pytest.raises(RegistryUnauthorized, match=f"user '{USER}': put a valid one") as refused:
            await client.tags("team/app")
    assert "wr0ng" not in str(refused.value)
    async with registry_server.client("") as client:
        with pytest.raises(RegistryUnauthorized, match="no credential"):
            await client.push_blob("team/app", BytesBlob(b"x"))


async def test_a_certificate_of_an_unknown_authority_is_refused(registry_server: RunningRegistry) -> None:
    stranger = RegistryCredential(username=USER, password="x")
    async with RegistryClient(registry_server.address, stranger, deadline_s=time.monotonic() + 60) as client:
        with pytest.raises(RegistryError, match=r"not trusted.*ca\.crt"):
            await client.tags("team/app")


async def test_plain_http_where_tls_is_wanted_is_refused_before_a_request(registry_server: RunningRegistry) -> None:
    with pytest.raises(PlainHttpRefused):
        registry_address(f"http://{registry_server.address.host}")


async def test_a_blob_that_is_there_is_not_sent_and_can_be_mounted(registry_server: RunningRegistry) -> None:
    class Unread:
        size = 4

        def read(self, offset: int) -> Iterator[bytes]:
            raise AssertionError("it is there already")

    one, other = fresh_repository(), fresh_repository()
    async with registry_server.client() as client:
        digest = await client.push_blob(one, BytesBlob(b"blob"))
        assert await client.push_blob(one, Unread(), digest) == digest
        assert not await client.has_blob(other, digest)
        assert await client.mount_blob(other, digest, one)
        assert await client.has_blob(other, digest)
        assert not await client.mount_blob(other, sha256_digest(b"unknown"), one)


async def test_content_that_has_changed_since_its_digest_was_taken_is_reported(
    registry_server: RunningRegistry,
) -> None:
    async with registry_server.client() as client:
        with pytest.raises(DigestMismatch, match="has changed"):
            await client.push_blob(fresh_repository(), BytesBlob(b"new"), sha256_digest(b"old"))


async def test_what_was_changed_in_the_registry_is_refused(registry_server: RunningRegistry) -> None:
    repository = fresh_repository()
    async with registry_server.client() as client:
        digest = await client.push_blob(repository, BytesBlob(b"weights" * 1000))
        name = digest.removeprefix("sha256:")
        stored = registry_server.data / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"
        blob = Descriptor(media_type="x", digest=digest, size=7000)
        stored.write_bytes(b"Weights" + stored.read_bytes()[7:])
        with pytest.raises(DigestMismatch, match="changed in the registry"):
            await fetched(client, repository, blob)
        stored.write_bytes(b"weights")
        with pytest.raises(RegistryError):
            await fetched(client, repository, blob)
        with pytest.raises(ImageNotFound):
            await fetched(client, repository, msgspec.structs.replace(blob, digest=sha256_digest(b"?")))
        with pytest.raises(ImageNotFound):
            await client.manifest(repository, "nothing")


async def test_a_source_that_fails_is_reported_as_the_source(registry_server: RunningRegistry) -> None:
    class Failing:
        size = 8 << 20

        def read(self, offset: int) -> Iterator[bytes]:
            yield bytes(4 << 20)
            raise OSError(5, "Input/output error")

    async with registry_server.client() as client:
        with pytest.raises(OSError, match="Input/output"):
            await client.push_blob(fresh_repository(), Failing())


async def test_the_newest_run_is_found_and_old_ones_are_deleted(registry_server: RunningRegistry) -> None:
    repository = fresh_repository()
    async with registry_server.client() as client:
        assert await client.tags(repository) == []
        for run in (1, 2, 10):
            await push_run(client, repository, run)
        await push_run(client, repository, 11, "uid-2")
        images = await images_of(client, repository, "uid-1", [tag_prefix("n", "main")])
        assert [image.run for image in images] == [1, 2, 10]
        assert [image.run for image in newest_run(images, "uid-1")] == [10]
        for image in expired_images(images, "uid-1", 1):
            await client.delete(repository, image.digest)
            await client.delete(repository, image.digest)
        assert sorted(await client.tags(repository)) == [run_tag("n", "main", run, AT) for run in (10, 11)]


async def test_a_registry_that_deletes_nothing_says_so(registry_server: RunningRegistry, tmp_path: Path) -> None:
    with running_registry(tmp_path, delete=False) as registry:
        async with registry.client("") as client:
            pushed = await push_run(client, "app", 1)
            with pytest.raises(DeletionUnsupported, match="allow deletion"):
                await client.delete("app", pushed.digest)


async def test_a_token_that_ends_in_the_middle_of_an_upload_is_renewed(
    token_registry_server: tuple[RunningRegistry, TokenService],
) -> None:
    registry, service = token_registry_server
    service.lifetime_s = 2.0

    class Slow:
        """Its last byte comes when the token that the upload began with has ended."""

        size = 6

        def read(self, offset: int) -> Iterator[bytes]:
            yield b"slow "[offset:]
            time.sleep(3.5)
            service.lifetime_s = 3600.0
            yield b"."

    async with registry.client() as client:
        digest = await client.push_blob("team/app", Slow())
        assert await client.has_blob("team/app", digest)
    pushes = [scopes for scopes in service.scopes if scopes == ["repository:team/app:pull,push"]]
    assert len(pushes) > 1, "one for the beginning, one for the end"
    assert service.scopes[-1] == ["repository:team/app:pull"], "no more is asked for than is needed"


@pytest.mark.parametrize("told_s", [0.0, None, 3600.0])
async def test_images_are_pushed_and_deleted_with_tokens(
    token_registry_server: tuple[RunningRegistry, TokenService], told_s: float | None
) -> None:
    registry, service = token_registry_server
    service.told_s = told_s
    async with registry.client() as client:
        pushed = await push_run(client, "team/app", 1)
        assert await client.mount_blob("team/other", pushed.layer.digest, "team/app")
        assert len(await client.tags("team/app")) == 1
        asked = len(service.scopes)
        await client.tags("team/app")
        assert len(service.scopes) == asked + (told_s == 0.0), "a token is used until its end"
        await client.delete("team/app", pushed.digest)
        assert await client.tags("team/app") == []


async def test_a_token_service_that_refuses_is_named_in_the_error(
    token_registry_server: tuple[RunningRegistry, TokenService],
) -> None:
    async with token_registry_server[0].client("wr0ng") as client:
        with pytest.raises(RegistryUnauthorized, match="get a token from 127") as refused:
            await client.tags("team/app")
    assert "wr0ng" not in str(refused.value)


async def test_a_registry_that_is_killed_in_the_middle_gets_the_rest_when_it_is_back(tmp_path: Path) -> None:
    whole = os.urandom(12 << 20)

    with running_registry(tmp_path) as registry:

        class Killing:
            size = len(whole)
            reads = 0

            def read(self, offset: int) -> Iterator[bytes]:
                self.reads += 1
                for start in range(offset, len(whole), 1 << 20):
                    if start == 8 << 20 and self.reads == 1:
                        registry.component.kill()
                        registry.component.launch()
                    yield whole[start : start + (1 << 20)]

        source = Killing()
        async with registry.client("") as client:
            digest = await client.push_blob("app", source)
            assert digest == sha256_digest(whole)
            found = Descriptor(media_type="x", digest=digest, size=len(whole))
            assert await fetched(client, "app", found) == whole
        assert source.reads == 2


async def test_skopeo_inspects_and_copies_our_images(registry_server: RunningRegistry, tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    assert skopeo
    repository = fresh_repository()
    async with registry_server.client() as client:
        pushed = await push_image(client, repository, "t", FACTS, file_blob(write_archive(tmp_path / "a.tar")))
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "ca.crt").write_text(registry_server.ca_pem)
    (tmp_path / "auth.json").write_text(
        json.dumps({"auths": {registry_server.address.host: {"auth": "YWRhOnMzY3JldA=="}}})
    )

    async def run(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            skopeo, "--insecure-policy", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, problem = await process.communicate()
        assert process.returncode == 0, problem.decode()
        return out.decode()

    access = ("--cert-dir", str(tmp_path / "certs"), "--authfile", str(tmp_path / "auth.json"))
    shown = json.loads(await run("inspect", *access, f"docker://{pushed.reference}"))
    assert shown["Digest"] == pushed.digest
    assert shown["Labels"]["dev.holdfast.run"] == "7"
    assert shown["Layers"] == [pushed.layer.digest]
    source_access = ("--src-cert-dir", str(tmp_path / "certs"), "--authfile", str(tmp_path / "auth.json"))
    await run(
        "copy", "--preserve-digests", *source_access, f"docker://{pushed.reference}", f"oci:{tmp_path / 'copy'}:t"
    )
    index = json.loads((tmp_path / "copy" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == pushed.digest
