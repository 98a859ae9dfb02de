"""Images of old runs are deleted, with a real registry; what is not ours, or another backup's, stays."""

from collections.abc import AsyncIterator
from random import Random
from secrets import token_hex
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.checkpointbackup import BuiltImage, CheckpointBackup
from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import OwnerReference
from holdfast.checkpointbackup import retention as retention_module
from holdfast.checkpointbackup.retention import ImageRetention, RetentionResult, runs_to_look_at
from holdfast.checkpointbackup.snapshot import status_of
from holdfast.checkpoints.images.image import BytesBlob, ImageFacts
from holdfast.checkpoints.images.newest import OwnedImage, expired_images
from holdfast.checkpoints.images.reference import run_tag
from holdfast.checkpoints.images.registry import push_image
from holdfast.runtime.authentication import HttpRefusal
from tests.checkpointbackup.backups import BEGUN, backup
from tests.checkpoints.images.conftest import registry_server
from tests.checkpoints.images.registries import RunningRegistry
from tests.control_plane.certificates import LOOPBACK
from tests.trainingjobs import UID, at

__all__ = ["registry_server"]


class KnownCredential:
    def __init__(self, answer: RegistryCredential | Exception) -> None:
        self._answer = answer
        self.asked = 0

    async def credential(self, _backup: CheckpointBackup) -> RegistryCredential:
        self.asked += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.fixture
def repository() -> str:
    return f"checkpoints/{token_hex(4)}"


async def push(
    registry: RunningRegistry, repository: str, run: int, *, container: str = "main", name: str = "save", uid: str = UID
) -> None:
    facts = ImageFacts(
        container=container,
        owner_uid=uid,
        owner_kind="CheckpointBackup",
        run=run,
        mode="container",
        created="2026-01-01T00:00:00Z",
    )
    async with registry.client() as client:
        tag = run_tag(name, container, run, at(run if uid == UID else -run))
        blob = BytesBlob(f"{name} {container} {run} {uid}".encode())
        await push_image(client, repository, tag, facts, blob)


async def runs(registry: RunningRegistry, repository: str) -> list[str]:
    async with registry.client() as client:
        return sorted(tag.rpartition("-")[0] for tag in await client.tags(repository))


def ran(registry: RunningRegistry | str, repository: str, run: int, *containers: str, **spec: Any) -> CheckpointBackup:
    """A backup whose last run has pushed images of these containers."""
    url = registry if isinstance(registry, str) else registry.address.host
    it = backup(
        {"registry": {"url": url, "repository": repository}, **spec}, {**BEGUN, "run": run, "phase": "Completed"}
    )
    images = tuple(BuiltImage(container_name=name, image_name="i") for name in containers or ("main",))
    return structs.replace(it, status=structs.replace(status_of(it), built_images=images))


def under_way(it: CheckpointBackup) -> CheckpointBackup:
    return structs.replace(it, status=structs.replace(status_of(it), phase=None))


async def test_the_newest_runs_of_the_backup_stay_and_nothing_of_others_goes(
    registry_server: RunningRegistry, repository: str
) -> None:
    for run in range(1, 6):
        await push(registry_server, repository, run)
    await push(registry_server, repository, 1, name="other")
    await push(registry_server, repository, 2, uid="of-an-earlier-backup-of-this-name")
    retention = ImageRetention(KnownCredential(registry_server.credential()))
    result = await retention.delete_old_images(ran(registry_server, repository, 5, retain=2))
    assert result == RetentionResult(deleted=3)
    assert await runs(registry_server, repository) == [
        "other-main-000001",
        "save-main-000002",
        "save-main-000004",
        "save-main-000005",
    ]
    again = await retention.delete_old_images(ran(registry_server, repository, 5, retain=2))
    assert again == RetentionResult(deleted=0)


async def test_of_thousands_of_old_runs_some_go_after_each_run(
    registry_server: RunningRegistry, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "OLDEST_AT_ONCE", 3)
    monkeypatch.setattr(retention_module, "SPARE_RUNS", 1)
    for run in range(1, 10):
        await push(registry_server, repository, run)
    retention = ImageRetention(KnownCredential(registry_server.credential()))
    for deleted in (4, 3, 0):
        result = await retention.delete_old_images(ran(registry_server, repository, 9, retain=2))
        assert result == RetentionResult(deleted=deleted)
    assert await runs(registry_server, repository) == ["save-main-000008", "save-main-000009"]


def owned(run: int, container: str) -> OwnedImage:
    digest = f"{container}{run}"
    return OwnedImage(tag=digest, digest=digest, owner_uid=UID, container=container, run=run, mode="container")


@given(chance=st.randoms(use_true_random=False), whole=st.floats(0, 1), retain=st.integers(1, 5))
def test_looking_at_fewer_runs_deletes_nothing_that_would_stay(chance: Random, whole: float, retain: int) -> None:
    everything = [owned(run, "a") for run in range(1, 400)]
    everything += [owned(run, "b") for run in range(1, 400) if chance.random() < whole]
    seen = set(runs_to_look_at(range(1, 400), retain))
    some = [image for image in everything if image.run in seen]
    assert set(expired_digests(some, retain)) <= set(expired_digests(everything, retain))


def expired_digests(images: list[OwnedImage], retain: int) -> list[str]:
    return [image.digest for image in expired_images(images, UID, retain, ("a", "b"))]


async def test_a_run_that_lacks_a_container_pushes_out_none_that_is_complete(
    registry_server: RunningRegistry, repository: str
) -> None:
    for run, containers in ((1, "ab"), (2, "ab"), (3, "a"), (4, "a"), (5, "ab")):
        for container in containers:
            await push(registry_server, repository, run, container=container)
    retention = ImageRetention(KnownCredential(registry_server.credential()))
    await retention.delete_old_images(ran(registry_server, repository, 5, "a", "b", retain=2))
    assert {tag.rpartition("-")[2] for tag in await runs(registry_server, repository)} == {
        "000002",
        "000003",
        "000004",
        "000005",
    }


async def test_the_images_of_an_owner_are_the_owners(registry_server: RunningRegistry, repository: str) -> None:
    for run in (1, 2):
        await push(registry_server, repository, run, uid="spot")
    owner = OwnerReference(api_version="x/v1", kind="SpotInstanceJob", name="j", uid="spot", controller=True)
    it = ran(registry_server, repository, 2, retain=1)
    it = structs.replace(it, metadata=structs.replace(it.metadata, owner_references=(owner,)))
    result = await ImageRetention(KnownCredential(registry_server.credential())).delete_old_images(it)
    assert result.deleted == 1


async def test_what_keeps_images_from_being_deleted_is_said(registry_server: RunningRegistry, repository: str) -> None:
    it = ran(registry_server, repository, 5)
    refused = ImageRetention(KnownCredential(HttpRefusal(403, "an administrator can allow it")))
    assert "an administrator can allow it" in (await refused.delete_old_images(it)).problem
    wrong = ImageRetention(KnownCredential(structs.replace(registry_server.credential(), password="wrong")))
    assert "images of old runs stay until after the next run" in (await wrong.delete_old_images(it)).problem


def test_it_is_due_once_for_each_run_that_this_process_saw_under_way() -> None:
    done = ran("registry.example.com", "c", 5)
    retention = ImageRetention(KnownCredential(RegistryCredential()))
    assert not retention.is_due(done)  # of a time before this process
    retention.begun(under_way(done))
    assert retention.is_due(done)
    retention.forget(done.metadata.key)
    assert not retention.is_due(done)


@pytest.mark.parametrize(
    "it",
    [
        ran("registry.example.com", "c", 5, retain=0),
        ran("registry.example.com", "c", 3),
        structs.replace(
            ran("registry.example.com", "c", 5),
            status=structs.replace(status_of(ran("registry.example.com", "c", 5)), built_images=()),
        ),
        structs.replace(
            ran("registry.example.com", "c", 5),
            status=structs.replace(status_of(ran("registry.example.com", "c", 5)), phase="CompletedWithError"),
        ),
    ],
    ids=["all are kept", "not more than are kept", "nothing was pushed", "a container was not saved"],
)
def test_where_nothing_can_go_nothing_is_asked(it: CheckpointBackup) -> None:
    retention = ImageRetention(KnownCredential(RegistryCredential()))
    retention.begun(under_way(it))
    assert not retention.is_due(it)


@pytest.fixture
async def undeleting_registry() -> AsyncIterator[str]:
    """One that takes images and deletes none, as some do."""
    manifest = (
        b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":'
        b'"application/vnd.oci.image.config.v1+json","digest":"sha256:' + b"0" * 64 + b'","size":2},"layers":[],'
        b'"annotations":{"dev.holdfast.owner-uid":"' + UID.encode() + b'","dev.holdfast.container":"main",'
        b'"dev.holdfast.mode":"container","dev.holdfast.run":"%d"}}'
    )
    tags = {run_tag("save", "main", run, at(run)): manifest % run for run in (1, 2)}

    async def answer(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            return web.json_response({"errors": [{"code": "UNSUPPORTED"}]}, status=405)
        if request.path.endswith("/tags/list"):
            return web.json_response({"name": "c", "tags": list(tags)})
        return web.Response(body=tags[request.path.rpartition("/")[2]], content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, 0)
    await site.start()
    yield f"{LOOPBACK}:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_registry_that_deletes_nothing_is_named_once(undeleting_registry: str) -> None:
    credentials = KnownCredential(RegistryCredential())
    retention = ImageRetention(credentials, plain_http=(undeleting_registry,))
    it = ran(undeleting_registry, "c", 2, retain=1)
    first = await retention.delete_old_images(it)
    assert (first.deleted, "images of old runs stay" in first.problem) == (0, True)
    assert await retention.delete_old_images(it) == RetentionResult()
    assert credentials.asked == 1
