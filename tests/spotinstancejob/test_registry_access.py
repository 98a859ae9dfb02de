"""Who gets which credential of a job's repository: from its Secret, or a token of an hour, or none."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.checkpointbackup.credentials import RegistrySecretReader
from holdfast.cluster.protocol import DeleteOptions
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, NAMESPACES, SECRETS, SPOT_INSTANCE_JOBS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.providers.errors import CloudUnauthorized, ProviderError
from holdfast.providers.gcp.http import HttpRequest, HttpResponse, NoAnswer
from holdfast.runtime.authentication import HttpRefusal
from holdfast.runtime.process import utc_now
from holdfast.runtime.secrets import SecretReader, SecretUnavailable
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.registry_access import RegistryAccess
from tests.leaks import PASSWORD
from tests.providers.compute_engine.accounts import Accounts
from tests.runtime.virtual import virtual
from tests.spotinstancejob.jobs import spot_job

GOOGLE = "gcr.io/my-project/checkpoints"
READ_WRITE = "https://www.googleapis.com/auth/devstorage.read_write"
READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"
TOKEN_URI = "http://accounts.test/token"


class TokenService:
    """The token address of Google."""

    def __init__(self) -> None:
        self.accounts = Accounts(utc_now)
        self.account = self.accounts.add("trainer@my-project.iam.gserviceaccount.com", ())
        self.is_silent = False

    async def send(self, request: HttpRequest) -> HttpResponse:
        if self.is_silent:
            raise NoAnswer("accounts.test did not answer")
        assert request.url == TOKEN_URI
        return self.accounts.answer(request.body, TOKEN_URI)

    async def close(self) -> None: ...


class Lab:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.tokens = TokenService()
        account = "holdfast-system:holdfast-operator"
        self.access = RegistryAccess(
            cluster,
            SecretReader(cluster, operator_account=account),
            self.tokens,
            now=utc_now,
            random=Random(0),
            token_uri=TOKEN_URI,
        )
        self.reader = RegistrySecretReader(cluster, operator_account=account, tokens=self.access)

    @property
    def scopes(self) -> list[frozenset[str]]:
        """Of the tokens that were given out."""
        return self.tokens.accounts.given

    async def secret(self, name: str, data: dict[str, bytes], namespace: str = "ml") -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        await self.cluster.create(SECRETS, {"metadata": {"name": name}, "data": encoded}, namespace=namespace)

    async def job(self, repository: str = GOOGLE, *, in_progress: int = 7, **checkpoints: Any) -> SpotInstanceJob:
        """The job as it is stored; its status asks for one checkpoint."""
        spec = spot_job().spec
        body = {
            "metadata": {"name": "bert"},
            "spec": {
                "jobTemplate": spec.job_template,
                "checkpointConfig": {
                    "checkpointImageRepo": repository,
                    "checkpointInterval": "30m",
                    **checkpoints,
                },
                "spotInstanceVMRef": {"name": "vm"},
                "gcpCredentialsSecretRef": {"name": "gcp-credentials"},
            },
        }
        await self.cluster.create(SPOT_INSTANCE_JOBS, body, namespace="ml")
        progress = {
            "number": in_progress,
            "replica": 0,
            "job": "bert-r0",
            "reason": "Interval",
            "time": "2026-01-01T00:00:00Z",
        }
        status = {"status": {"checkpointsInProgress": [progress]}}
        return await self.cluster.patch_status(SPOT_INSTANCE_JOBS, Key("ml", "bert"), status)

    async def backup(
        self,
        job: SpotInstanceJob,
        number: int = 7,
        *,
        registry: dict[str, Any] | None = None,
        image: str = "",
        **metadata: Any,
    ) -> CheckpointBackup:
        """A checkpoint of the job, as it makes them itself."""
        written = job.spec.checkpoint_config.checkpoint_image_repo.partition("/")
        meta = names.child_metadata(job, names.backup_name("bert", 0, number), names.replica_labels("bert", 0, 0))
        body = {
            "metadata": {**meta, **metadata},
            "spec": {
                "schedule": "immediately",
                "podRef": {"name": "bert-r0-abcde"},
                "registry": {"url": written[0], "repository": written[2], **(registry or {})},
                "containers": [{"name": "training", "image": image or f"{'/'.join(written[::2])}:a-tag"}],
            },
        }
        return await self.cluster.create(CHECKPOINT_BACKUPS, body, namespace="ml")


@asynccontextmanager
async def opened() -> AsyncIterator[Lab]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    for namespace in ("ml", "shared"):
        await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
    made = Lab(cluster)
    await made.secret("gcp-credentials", {"credentials.json": made.tokens.account.key_file()})
    yield made
    await cluster.close()


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with opened() as made:
        yield made


async def test_a_checkpoint_of_the_job_gets_a_token_that_can_push(lab: Lab) -> None:
    found = await lab.reader.credential(await lab.backup(await lab.job()))
    assert found.username == "oauth2accesstoken"
    assert found.password
    assert lab.scopes == [{READ_WRITE}]


async def test_each_push_gets_a_token_of_its_own(lab: Lab) -> None:
    backup = await lab.backup(await lab.job())
    first, second = [await lab.reader.credential(backup) for _ in range(2)]
    assert first.password != second.password


async def test_nodes_that_restore_get_a_token_that_can_only_pull(lab: Lab) -> None:
    found = await lab.access.pull_token(await lab.job())
    assert found is not None
    assert found.password
    assert lab.scopes == [{READ_ONLY}]


@pytest.mark.parametrize("repository", ["registry.example.com/team/c", "127.0.0.1:5000/c", "evil-gcr.io/p/c"])
async def test_no_token_of_google_is_shown_to_another_registry(lab: Lab, repository: str) -> None:
    job = await lab.job(repository)
    assert await lab.reader.credential(await lab.backup(job)) == RegistryCredential()
    assert await lab.access.pull_token(job) is None
    assert await lab.access.credential(job) == RegistryCredential()
    assert lab.scopes == []


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"number": 8}, id="that the job has not asked for"),
        pytest.param({"name": "bert-mine-c7"}, id="of another name"),
        pytest.param({"name": "bert-r1-c7"}, id="of another replica"),
        pytest.param({"ownerReferences": []}, id="that nobody owns"),
        pytest.param({"registry": {"repository": "my-project/mine"}}, id="for another repository"),
        pytest.param({"image": "gcr.io/another-project/web:latest"}, id="for another image"),
        pytest.param({"registry": {"url": "eu.gcr.io"}, "image": "eu.gcr.io/my-project/c"}, id="for another registry"),
        pytest.param(
            {"registry": {"url": "https://gcr.io.example.com"}, "image": "gcr.io.example.com/my-project/checkpoints"},
            id="for a registry that looks like it",
        ),
    ],
)
async def test_a_backup_that_only_looks_like_the_jobs_gets_none(lab: Lab, forged: dict[str, Any]) -> None:
    backup = await lab.backup(await lab.job(), **forged)
    assert await lab.reader.credential(backup) == RegistryCredential()
    assert lab.scopes == []


async def test_a_backup_of_an_earlier_job_of_this_name_gets_none(lab: Lab) -> None:
    backup = await lab.backup(await lab.job())
    await lab.cluster.delete(SPOT_INSTANCE_JOBS, Key("ml", "bert"), DeleteOptions())
    assert await lab.reader.credential(backup) == RegistryCredential()
    await lab.job()
    assert await lab.reader.credential(backup) == RegistryCredential()
    assert lab.scopes == []


async def test_a_secret_that_the_job_names_is_used_and_no_token_is_made(lab: Lab) -> None:
    await lab.secret("push", {"username": b"ada", "password": PASSWORD.encode()})
    job = await lab.job(checkpointRepoCredentialRef={"name": "push"})
    assert (await lab.access.credential(job)).username == "ada"
    assert await lab.access.pull_token(job) is None
    backup = await lab.backup(job, registry={"secretRef": {"name": "push"}})
    assert (await lab.reader.credential(backup)).username == "ada"
    # Whoever leaves the Secret out of a backup gets no token in its place.
    assert await lab.reader.credential(await lab.backup(job, 8)) == RegistryCredential()
    assert lab.scopes == []


async def test_the_operator_itself_lists_and_deletes_with_a_token(lab: Lab) -> None:
    assert (await lab.access.credential(await lab.job())).username == "oauth2accesstoken"


async def test_a_missing_account_is_told_with_the_field(lab: Lab) -> None:
    job = await lab.job()
    await lab.cluster.delete(SECRETS, Key("ml", "gcp-credentials"), DeleteOptions())
    with pytest.raises(SecretUnavailable, match=r"gcp-credentials of spec\.gcpCredentialsSecretRef does not exist"):
        await lab.access.credential(job)
    with pytest.raises(HttpRefusal, match="create it") as refusal:
        await lab.reader.credential(await lab.backup(job))
    assert refusal.value.status == 404


async def test_a_secret_without_the_key_is_told(lab: Lab) -> None:
    await lab.cluster.delete(SECRETS, Key("ml", "gcp-credentials"), DeleteOptions())
    await lab.secret("gcp-credentials", {"key.json": b"{}"})
    with pytest.raises(CloudUnauthorized, match=r"has no key credentials\.json"):
        await lab.access.credential(await lab.job())


@pytest.mark.parametrize(("is_revoked", "status"), [(True, 409), (False, 503)])
def test_an_agent_tries_again_where_that_may_help(is_revoked: bool, status: int) -> None:
    """After a 409 a run has failed, and after a 503 it asks again."""

    @virtual
    async def run() -> None:
        async with opened() as lab:
            lab.tokens.account.is_revoked = is_revoked
            lab.tokens.is_silent = not is_revoked
            job = await lab.job()
            with pytest.raises(HttpRefusal, match="token") as refusal:
                await lab.reader.credential(await lab.backup(job))
            assert refusal.value.status == status
            with pytest.raises(ProviderError):
                await lab.access.pull_token(job)

    run()
