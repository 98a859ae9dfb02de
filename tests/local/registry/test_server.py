"""The local registry as our own client and skopeo see it, and what bad requests get."""

import asyncio
import hashlib
import io
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from yarl import URL

from holdfast.checkpoints.images.errors import DigestMismatch, ImageNotFound, RegistryError
from holdfast.checkpoints.images.image import MANIFEST_TYPE, BytesBlob, Descriptor, sha256_digest
from holdfast.checkpoints.images.newest import expired_images, images_of
from holdfast.checkpoints.images.registry import RegistryClient, push_image
from holdfast.local.registry import server, storage
from tests.checkpoints import provision
from tests.checkpoints.images.test_image import FACTS
from tests.checkpoints.images.test_registry import fetched, push_run
from tests.local.registry.registries import opened, raw

REPOSITORY = "team/checkpoints"
LARGE = bytes(range(256)) * 20_000  # some chunks


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[tuple[str, RegistryClient]]:
    async with opened(tmp_path) as found:
        yield found


async def test_an_image_is_pushed_and_comes_back(serving: tuple[str, RegistryClient]) -> None:
    host, registry = serving
    pushed = await push_image(registry, REPOSITORY, "t1", FACTS, BytesBlob(LARGE))
    assert str(pushed.reference) == f"{host}/{REPOSITORY}:t1"
    assert await registry.resolve_tag(REPOSITORY, "t1") == pushed.digest
    assert await registry.manifest(REPOSITORY, pushed.digest) == await registry.manifest(REPOSITORY, "t1")
    assert await fetched(registry, REPOSITORY, pushed.layer) == LARGE
    assert await registry.has_blob(REPOSITORY, pushed.layer.digest)
    assert await registry.mount_blob("team/other", pushed.layer.digest, REPOSITORY)


async def test_a_missing_image_is_reported_as_missing(serving: tuple[str, RegistryClient]) -> None:
    _, registry = serving
    assert await registry.tags("team/nothing") == []
    assert await registry.resolve_tag("team/nothing", "t1") is None
    assert not await registry.has_blob(REPOSITORY, sha256_digest(b"x"))
    assert not await registry.mount_blob(REPOSITORY, sha256_digest(b"x"), "team/other")
    with pytest.raises(ImageNotFound):
        await registry.manifest(REPOSITORY, "t1")
    with pytest.raises(ImageNotFound):
        await fetched(registry, REPOSITORY, Descriptor(media_type="", digest=sha256_digest(b"x"), size=1))


async def test_tags_come_in_pages(serving: tuple[str, RegistryClient], monkeypatch: pytest.MonkeyPatch) -> None:
    _, registry = serving
    monkeypatch.setattr(server, "TAGS_PER_PAGE", 3)
    for run in range(1, 9):
        await push_run(registry, REPOSITORY, run)
    assert [image.run for image in await images_of(registry, REPOSITORY, "uid-1")] == list(range(1, 9))


async def test_deleted_images_are_gone_with_their_tags_and_blobs(
    serving: tuple[str, RegistryClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, registry = serving
    for run in range(1, 4):
        await push_run(registry, REPOSITORY, run)
    await registry.push_blob(REPOSITORY, BytesBlob(b"a layer whose manifest is still to come"))
    blobs = set((tmp_path / "blobs").glob("*/*/*"))
    (old, _) = expired_images(await images_of(registry, REPOSITORY, "uid-1"), "uid-1", retain=1)
    await registry.delete(REPOSITORY, old.digest)
    await registry.delete(REPOSITORY, old.digest)
    assert [image.run for image in await images_of(registry, REPOSITORY, "uid-1")] == [2, 3]
    assert set((tmp_path / "blobs").glob("*/*/*")) == blobs, "young blobs stay: a manifest may be on its way"
    monkeypatch.setattr(storage, "BLOB_GRACE_S", -1.0)
    (old, *_) = await images_of(registry, REPOSITORY, "uid-1")
    await registry.delete(REPOSITORY, old.digest)
    # The layer is shared by all runs; the configs of runs 1 and 2 and the lonely layer are not named any more.
    assert len(set((tmp_path / "blobs").glob("*/*/*"))) == len(blobs) - 3
    (kept,) = await images_of(registry, REPOSITORY, "uid-1")
    assert json.loads(await registry.manifest(REPOSITORY, kept.digest))["layers"][0]["size"] == len(b"archive")


async def test_a_tag_can_be_removed_alone(serving: tuple[str, RegistryClient]) -> None:
    host, registry = serving
    pushed = await push_image(registry, REPOSITORY, "t1", FACTS, BytesBlob(b"archive"))
    async with raw(host) as session, session.delete(f"/v2/{REPOSITORY}/manifests/t1") as answer:
        assert answer.status == 202
    assert await registry.tags(REPOSITORY) == []
    assert await registry.manifest(REPOSITORY, pushed.digest)


async def test_what_is_tampered_with_on_disk_is_noticed_by_its_reader(
    serving: tuple[str, RegistryClient], tmp_path: Path
) -> None:
    _, registry = serving
    pushed = await push_image(registry, REPOSITORY, "t1", FACTS, BytesBlob(b"archive"))
    name = pushed.layer.digest.removeprefix("sha256:")
    (tmp_path / "blobs" / "sha256" / name[:2] / name).write_bytes(b"arch1ve")
    with pytest.raises(DigestMismatch):
        await fetched(registry, REPOSITORY, pushed.layer)


async def test_an_upload_goes_on_after_a_break_and_after_a_restart(tmp_path: Path) -> None:
    digest = sha256_digest(LARGE)
    async with opened(tmp_path) as (host, _), raw(host) as session:
        async with session.post(f"/v2/{REPOSITORY}/blobs/uploads/") as answer:
            place = answer.headers["Location"]
        async with session.patch(place, data=LARGE[:100_000]) as answer:
            assert (answer.status, answer.headers["Range"]) == (202, "0-99999")
    async with opened(tmp_path) as (again, registry), raw(again) as session:
        assert again == host, "images are known by the registry's port"
        async with session.get(place) as answer:
            assert (answer.status, answer.headers["Range"]) == (204, "0-99999")
        wrong = {"Content-Range": "50000-150000"}
        async with session.patch(place, data=io.BytesIO(LARGE[50_000:]), headers=wrong) as answer:
            assert answer.status == 416
        right = {"Content-Range": f"100000-{len(LARGE) - 1}"}
        async with session.patch(place, data=io.BytesIO(LARGE[100_000:]), headers=right) as answer:
            assert answer.status == 202
        async with session.put(place, params={"digest": digest}) as answer:
            assert (answer.status, answer.headers["Docker-Content-Digest"]) == (201, digest)
        assert await registry.has_blob(REPOSITORY, digest)


async def test_an_upload_whose_client_dies_keeps_what_came_and_no_blob_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as (host, registry), raw(host) as session:
        async with session.post(f"/v2/{REPOSITORY}/blobs/uploads/") as answer:
            place = answer.headers["Location"]
        name, _, port = host.partition(":")
        _, writer = await asyncio.open_connection(name, int(port))
        writer.write(f"PATCH {place} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n".encode() + b"x" * 400)
        await writer.drain()
        uploads = tmp_path / "uploads"
        async with asyncio.timeout(60):
            while sum(path.stat().st_size for path in uploads.iterdir()) < 400:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        writer.close()
        async with session.get(place) as answer:
            assert answer.headers["Range"] == "0-399"
        assert not await registry.has_blob(REPOSITORY, sha256_digest(b"x" * 400))
        async with session.delete(place) as answer:
            assert answer.status == 204
        assert list(uploads.iterdir()) == []


async def test_a_digest_that_does_not_match_is_refused_and_nothing_is_left(
    serving: tuple[str, RegistryClient], tmp_path: Path
) -> None:
    _, registry = serving
    with pytest.raises(DigestMismatch):
        await registry.push_blob(REPOSITORY, BytesBlob(b"archive"), sha256_digest(b"another"))
    assert not await registry.has_blob(REPOSITORY, sha256_digest(b"another"))
    assert list((tmp_path / "uploads").iterdir()) == []


async def test_a_manifest_whose_blobs_are_missing_is_refused(serving: tuple[str, RegistryClient]) -> None:
    _, registry = serving
    body = json.dumps({"config": {"digest": sha256_digest(b"nowhere")}, "layers": []}).encode()
    with pytest.raises(RegistryError, match="MANIFEST_BLOB_UNKNOWN"):
        await registry.put_manifest(REPOSITORY, body, "t1")
    assert await registry.resolve_tag(REPOSITORY, "t1") is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v2/UPPER/tags/list", b"", 400, "NAME_INVALID"),
        ("GET", "/v2/a/../../etc/tags/list", b"", 400, "NAME_INVALID"),
        ("GET", "/v2/a/manifests/..", b"", 400, "TAG_INVALID"),
        ("GET", "/v2/a/manifests/%2E%2E", b"", 400, "TAG_INVALID"),
        ("GET", "/v2/a/manifests/sha512:00", b"", 400, "TAG_INVALID"),
        ("GET", "/v2/a/blobs/sha256:short", b"", 400, "DIGEST_INVALID"),
        ("PUT", "/v2/a/manifests/t", b"not json", 400, "MANIFEST_INVALID"),
        ("PUT", "/v2/a/manifests/t", b'{"config":{"digest":"../x"}}', 400, "MANIFEST_INVALID"),
        ("PUT", f"/v2/a/manifests/{sha256_digest(b'x')}", b"{}", 400, "DIGEST_INVALID"),
        ("PUT", "/v2/a/manifests/t", b"x" * (5 << 20), 413, "SIZE_INVALID"),
        ("PATCH", "/v2/a/blobs/uploads/..%2F..%2Fport", b"x", 404, "BLOB_UPLOAD_UNKNOWN"),
        ("PUT", f"/v2/a/blobs/uploads/{'0' * 32}?digest={sha256_digest(b'')}", b"", 404, "BLOB_UPLOAD_UNKNOWN"),
        ("POST", "/v2/a/blobs/uploads/?digest=md5:0", b"", 400, "DIGEST_INVALID"),
    ],
)
async def test_bad_requests_are_refused_with_a_code(
    serving: tuple[str, RegistryClient], method: str, path: str, body: bytes, status: int, code: str
) -> None:
    host, _ = serving
    async with raw(host) as session:
        url = URL(f"http://{host}{path}", encoded=True)
        async with session.request(
            method, url, data=io.BytesIO(body), headers={"Content-Type": MANIFEST_TYPE}
        ) as answer:
            assert answer.status == status
            assert not code or (await answer.json())["errors"][0]["code"] == code


async def test_another_user_of_the_machine_is_refused(
    serving: tuple[str, RegistryClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _ = serving
    monkeypatch.setattr(server, "is_own_client", lambda client, own: False)
    async with raw(host) as session, session.get("/v2/") as answer:
        assert answer.status == 403
        assert (await answer.json())["errors"][0]["code"] == "DENIED"


async def test_skopeo_copies_an_image_in_and_out(serving: tuple[str, RegistryClient], tmp_path: Path) -> None:
    program = shutil.which(provision.SKOPEO)
    if program is None:
        pytest.fail("skopeo is not installed: run `make stores`", pytrace=False)
    host, registry = serving
    pushed = await push_image(registry, REPOSITORY, "t1", FACTS, BytesBlob(LARGE))
    tar = Descriptor(media_type="", digest=pushed.layer.digest, size=len(LARGE))

    async def copy(source: str, target: str) -> None:
        options = ("--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false")
        process = await asyncio.create_subprocess_exec(
            program, "--insecure-policy", "copy", *options, source, target, stderr=subprocess.PIPE
        )
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()

    await copy(f"docker://{host}/{REPOSITORY}:t1", f"oci:{tmp_path / 'layout'}:t1")
    await copy(f"oci:{tmp_path / 'layout'}:t1", f"docker://{host}/team/copied:t2")
    assert await registry.resolve_tag("team/copied", "t2") == pushed.digest
    content = await fetched(registry, "team/copied", tar)
    assert hashlib.sha256(content).hexdigest() == pushed.layer.digest.removeprefix("sha256:")
