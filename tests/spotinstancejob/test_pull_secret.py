"""The Secret with a token of an hour by which nodes fetch the images of restored replicas."""

import base64
import json
from typing import Any, cast

import pytest
from msgspec import structs

from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.cluster.errors import AlreadyExists, Forbidden
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import SECRETS
from holdfast.providers.errors import CloudUnauthorized
from holdfast.runtime.children import Blocked
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.runtime.secrets import SecretUnavailable
from holdfast.spotinstancejob.pull_secret import TokenPullSecrets
from tests.spotinstancejob.jobs import spot_job

JOB = spot_job()


class Tokens:
    def __init__(self, *passwords: str, problem: Exception | None = None) -> None:
        self.passwords = list(passwords)
        self.problem = problem

    async def pull_token(self, job: SpotInstanceJob) -> RegistryCredential | None:
        if self.problem is not None:
            raise self.problem
        if not self.passwords:
            return None
        return RegistryCredential(username="oauth2accesstoken", password=self.passwords.pop(0))


class Session:
    """Holds the Secrets that were written."""

    def __init__(self, *, may_write: bool = True) -> None:
        self.secrets: dict[str, JSON] = {}
        self._may_write = may_write

    async def create(self, resource: Resource[Any], body: JSON, *, namespace: str) -> None:
        if not self._may_write:
            raise Forbidden("secrets is forbidden")
        assert (resource, namespace) == (SECRETS, "ml")
        if body["metadata"]["name"] in self.secrets:
            raise AlreadyExists("it is there")
        self.secrets[body["metadata"]["name"]] = body

    async def patch(self, resource: Resource[Any], key: Key, patch: JSON) -> None:
        old = self.secrets[key.name]
        metadata = {**old["metadata"], **patch["metadata"]}
        self.secrets[key.name] = {**old, **patch, "metadata": metadata}


async def ensured(session: Session, tokens: Tokens, job: SpotInstanceJob = JOB) -> str:
    secrets = TokenPullSecrets(tokens, operator_account="holdfast:operator")
    return await secrets.ensure(job, cast("TrackedClient", session))


async def test_a_token_is_written_and_renewed_for_each_restore() -> None:
    session, tokens = Session(), Tokens("first", "second")
    for password in ("first", "second"):
        assert await ensured(session, tokens) == "bert-pull"
        written = session.secrets["bert-pull"]
        assert written["type"] == "kubernetes.io/dockerconfigjson"
        config = json.loads(base64.b64decode(written["data"][".dockerconfigjson"]))
        login = base64.b64decode(config["auths"]["registry.example.com"]["auth"]).decode()
        assert login == f"oauth2accesstoken:{password}"
    (owner,) = session.secrets["bert-pull"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("SpotInstanceJob", JOB.metadata.uid, True)


async def test_none_is_written_where_the_job_names_one_or_the_registry_takes_none() -> None:
    session = Session()
    named = spot_job(checkpoints={"checkpointRepoCredentialRef": {"name": "push"}})
    assert await ensured(session, Tokens("first"), named) == ""
    assert await ensured(session, Tokens()) == ""
    assert session.secrets == {}


async def test_the_secret_of_an_earlier_job_of_this_name_is_taken_over_and_does_not_go_with_that_job() -> None:
    session, earlier = Session(), spot_job()
    await ensured(session, Tokens("first"), structs.replace(earlier, metadata=structs.replace(JOB.metadata, uid="old")))
    await ensured(session, Tokens("second"))
    (owner,) = session.secrets["bert-pull"]["metadata"]["ownerReferences"]
    assert owner["uid"] == JOB.metadata.uid


@pytest.mark.parametrize(
    "problem",
    [
        SecretUnavailable("SecretMissing", "Secret ml/gcp does not exist: create it"),
        CloudUnauthorized("the key is revoked"),
    ],
)
async def test_why_there_is_no_token_is_said_to_whoever_waits_for_the_restore(problem: Exception) -> None:
    with pytest.raises(Blocked) as refusal:
        await ensured(Session(), Tokens(problem=problem))
    assert str(refusal.value) == f"there is no token to pull registry.example.com/team/checkpoints with: {problem}"


async def test_a_missing_right_is_said_with_the_command_that_gives_it() -> None:
    with pytest.raises(Blocked) as refusal:
        await ensured(Session(may_write=False), Tokens("first"))
    assert (
        "kubectl create rolebinding holdfast-pull-secrets --namespace=ml --clusterrole=holdfast-pull-secrets "
        "--serviceaccount=holdfast:operator"
    ) in str(refusal.value)
    assert "first" not in str(refusal.value)
