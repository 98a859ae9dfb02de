"""A job's checkpoints in a registry: listed, described and deleted, and nothing of others is touched."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.credentials import RegistryCredential
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.checkpoints.images.image import BytesBlob, ImageFacts
from holdfast.checkpoints.images.reference import run_tag
from holdfast.checkpoints.images.registry import push_image
from holdfast.local.registry.server import serve_registry
from holdfast.providers.errors import CloudUnauthorized, ProviderError
from holdfast.runtime.secrets import SecretUnavailable
from holdfast.spotinstancejob.images import CheckpointImages, SavedImage, newest, old_checkpoints, status_image
from holdfast.spotinstancejob.repository import CheckpointRepository, RepositoryProblem
from tests.checkpoints.images.conftest import registry_server
from tests.checkpoints.images.registries import RunningRegistry
from tests.local.registry.registries import client
from tests.spotinstancejob.jobs import CPU_CONTAINER, OTHER_UID, spot_job
from tests.trainingjobs import UID, at

__all__ = ["registry_server"]

PATH = "team/checkpoints"
LOGGER = {"name": "logger", "image": "x"}


class GivenCredential:
    def __init__(self, answer: RegistryCredential | Exception | None = None) -> None:
        self.answer = answer or RegistryCredential()

    async def credential(self, job: SpotInstanceJob) -> RegistryCredential:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Lab:
    def __init__(self, host: str) -> None:
        self.host = host
        self.credentials = GivenCredential()
        self.repository = CheckpointRepository(self.credentials, plain_http=(host,))
        self.job = spot_job(
            CPU_CONTAINER, LOGGER, checkpoints={"checkpointImageRepo": f"{host}/{PATH}", "mode": "container"}
        )

    async def push(self, number: int, *containers: str, replica: int = 0, uid: str = UID, **facts: Any) -> None:
        """A checkpoint of a replica, as an agent pushes it."""
        for container in containers or ("main", "logger"):
            told = ImageFacts(
                mode="container",
                owner_uid=uid,
                owner_kind="SpotInstanceJob",
                container=container,
                run=1,
                created="2026-01-01T00:00:00Z",
                replica=str(replica),
                **facts,
            )
            tag = run_tag(f"{uid}-r{replica}", container, number, at(number))
            async with client(self.host) as registry:
                await push_image(registry, PATH, tag, told, BytesBlob(f"{uid} {number} {container}".encode()))

    async def tags(self) -> list[str]:
        async with client(self.host) as registry:
            return await registry.tags(PATH)

    async def numbers(self) -> list[int]:
        return [each.number for each in await self.repository.checkpoints(self.job)]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with serve_registry(tmp_path) as host:
        yield Lab(host)


async def test_the_jobs_checkpoints_are_listed_with_what_their_images_tell(lab: Lab) -> None:
    await lab.push(2, replica=1, base_image="x@sha256:1", cpu_flags=("avx", "sse"))
    await lab.push(10)
    await lab.push(11, "main")
    await lab.push(99, uid=OTHER_UID)
    found = await lab.repository.checkpoints(lab.job)
    assert [(each.number, each.replica, each.is_whole) for each in found] == [
        (11, 0, False),
        (10, 0, True),
        (2, 1, True),
    ]
    assert {each.restorable.base_image for each in found[2].images} == {"x@sha256:1"}
    chosen = newest(found)
    assert chosen is not None
    assert chosen.number == 10
    assert status_image(lab.job, chosen).startswith(f"{lab.host}/{PATH}:{UID}-r0-main-000010-")


async def test_a_repository_that_nobody_has_pushed_to_is_empty(lab: Lab) -> None:
    assert await lab.numbers() == []


async def test_a_checkpoint_that_status_names_is_described(lab: Lab) -> None:
    await lab.push(3, base_image="x@sha256:1")
    (listed,) = await lab.repository.checkpoints(lab.job)
    bare = structs.replace(listed, images=tuple(structs.replace(each, labels={}) for each in listed.images))
    assert bare != listed
    assert await lab.repository.described(lab.job, bare) == listed


async def test_a_checkpoint_whose_image_is_gone_is_none(lab: Lab) -> None:
    image = SavedImage(container="main", image=f"{lab.host}/{PATH}:gone", digest="sha256:" + "0" * 64)
    gone = CheckpointImages(number=1, replica=0, mode="container", images=(image,))
    assert await lab.repository.described(lab.job, gone) is None
    await lab.push(3)
    assert await lab.repository.described(lab.job, gone) is None


async def test_old_images_are_deleted_and_those_of_others_stay(lab: Lab) -> None:
    for number in range(1, 6):
        await lab.push(number)
    await lab.push(3, uid=OTHER_UID)
    old = old_checkpoints(await lab.repository.checkpoints(lab.job), 2)
    assert await lab.repository.delete(lab.job, old) == 6
    assert await lab.numbers() == [5, 4]
    assert len([tag for tag in await lab.tags() if tag.startswith(OTHER_UID)]) == 2
    assert await lab.repository.delete(lab.job, old) == 6, "what is gone already is no error"


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (SecretUnavailable("SecretMissing", "Secret ml/push does not exist: create it"), False),
        (CloudUnauthorized("the key was deleted"), False),
        (ProviderError("no answer"), True),
    ],
)
async def test_a_credential_that_is_not_to_be_had_is_told(lab: Lab, error: Exception, may_pass: bool) -> None:
    lab.credentials.answer = error
    with pytest.raises(RepositoryProblem, match=str(error)) as problem:
        await lab.repository.checkpoints(lab.job)
    assert problem.value.may_pass == may_pass


async def test_a_credential_that_the_registry_refuses_is_told_with_the_jobs_own_field(
    registry_server: RunningRegistry,
) -> None:
    wrong = GivenCredential(registry_server.credential("wrong"))
    job = spot_job(checkpoints={"checkpointImageRepo": f"{registry_server.address.host}/{PATH}"})
    with pytest.raises(RepositoryProblem, match=r"Secret of spec\.checkpointConfig\.checkpointRepoCredentialRef"):
        await CheckpointRepository(wrong).checkpoints(job)


async def test_a_repository_that_no_registry_can_have_is_told(lab: Lab) -> None:
    job = spot_job(checkpoints={"checkpointImageRepo": "gcr.io/A/b"})
    with pytest.raises(RepositoryProblem, match="lower case") as problem:
        await lab.repository.checkpoints(job)
    assert not problem.value.may_pass


async def test_a_registry_that_is_not_to_be_reached_without_tls_is_told(lab: Lab) -> None:
    strict = CheckpointRepository(lab.credentials)
    with pytest.raises(RepositoryProblem, match=lab.host):
        await strict.checkpoints(lab.job)
