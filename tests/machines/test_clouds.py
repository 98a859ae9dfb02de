"""Who may use which credential, and how long it is remembered."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random

import pytest

from holdfast.api.core.pod import ObjectReference
from holdfast.api.meta import Key
from holdfast.cluster.errors import Forbidden, Unreachable
from holdfast.cluster.protocol import Resource, T
from holdfast.cluster.resources import NAMESPACES, SECRETS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.machines.clouds import REREAD_S, Account, Cloud, Clouds, CloudUnavailable
from holdfast.providers.errors import CloudUnauthorized
from holdfast.providers.protocol import Provider
from holdfast.runtime.secrets import SecretReader
from tests.machines.fake_cloud import FakeCloud

GCP = ObjectReference(name="gcp")


def now() -> datetime:
    return datetime(2026, 3, 1, tzinfo=UTC)


class CountingCluster(EmbeddedCluster):
    reads = 0
    trouble: Exception | None = None

    async def get(self, resource: Resource[T], key: Key) -> T:
        if resource.plural == "secrets":
            self.reads += 1
            if self.trouble is not None:
                raise self.trouble
        return await super().get(resource, key)


class Bench:
    def __init__(self, cluster: CountingCluster) -> None:
        self.cluster = cluster
        self.clock_s = 0.0
        self.made: list[tuple[str, bytes | None, FakeCloud]] = []
        reader = SecretReader(cluster, operator_account="holdfast-system:holdfast-operator")
        self.clouds = Clouds(reader, self.connect, clock=lambda: self.clock_s, own_identity_namespaces=("trusted",))

    def connect(self, project: str, credential: bytes | None) -> Provider:
        if credential == b"not JSON":
            raise CloudUnauthorized("credentials.json is not JSON")
        cloud = FakeCloud(now)
        self.made.append((project, credential, cloud))
        return cloud

    async def secret(self, content: str = "key", *, namespace: str = "ml", allows: str = "") -> None:
        annotations = {"holdfast.dev/allow-namespaces": allows} if allows else {}
        data = {"credentials.json": base64.b64encode(content.encode()).decode()}
        body = {"metadata": {"name": "gcp", "annotations": annotations}, "data": data}
        await self.cluster.create(SECRETS, body, namespace=namespace)

    async def drop(self, namespace: str = "ml") -> None:
        await self.cluster.delete(SECRETS, Key(namespace, "gcp"))

    async def open(
        self, namespace: str = "ml", reference: ObjectReference | None = GCP, *, fresh: bool = False
    ) -> Cloud:
        return await self.clouds.open(namespace, "lab-project", reference, fresh=fresh)

    async def refusal(self, namespace: str = "ml", reference: ObjectReference | None = GCP) -> tuple[str, str]:
        with pytest.raises(CloudUnavailable) as refused:
            await self.open(namespace, reference, fresh=True)
        return refused.value.reason, str(refused.value)


@asynccontextmanager
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr("holdfast.local.apiserver.server.EmbeddedCluster", CountingCluster)
    cluster = await open_cluster(None, now=now, rng=Random(0))
    assert isinstance(cluster, CountingCluster)
    for namespace in ("ml", "other", "trusted"):
        await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
    made = Bench(cluster)
    try:
        yield made
    finally:
        await made.clouds.close()
        await cluster.close()


async def test_a_credential_is_read_once_and_outlives_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch) as it:
        await it.secret()
        first = await it.open()
        assert first.account == Account("lab-project", Key("ml", "gcp"))
        await it.drop()
        assert (await it.open()).provider is first.provider is it.clouds.known(first.account)
        assert (it.cluster.reads, [credential for _, credential, _ in it.made]) == (1, [b"key"])


async def test_before_a_machine_is_made_the_secret_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch) as it:
        await it.secret()
        await it.open()
        await it.drop()
        assert await it.refusal() == (
            "SecretMissing",
            "Secret ml/gcp of gcpCredentialsSecretRef does not exist: create it",
        )


async def test_another_namespace_is_not_served_by_what_one_was_allowed_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ObjectReference(name="gcp", namespace="other")
    async with bench(monkeypatch) as it:
        await it.secret(namespace="other", allows="ml")
        allowed = await it.open("ml", shared)
        with pytest.raises(CloudUnavailable) as refused:
            await it.clouds.open("trusted", "lab-project", shared)
        assert refused.value.reason == "SecretNotAllowed"
        assert (await it.open("other")).provider is allowed.provider, "its own, of the same account"


async def test_a_changed_credential_takes_over_and_the_old_one_is_closed_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench(monkeypatch) as it:
        await it.secret("old")
        await it.open()
        await it.drop()
        await it.secret("new")
        await it.open(fresh=True)
        await it.open(fresh=True)
        assert [credential for _, credential, _ in it.made] == [b"old", b"new"]
        assert not it.made[0][2].is_closed, "its calls may be under way"
    assert [cloud.is_closed for _, _, cloud in it.made] == [True, True]


async def test_a_credential_that_the_cloud_refuses_is_read_again_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench(monkeypatch) as it:
        await it.secret("revoked")
        account = (await it.open()).account
        it.clouds.rejected(account)
        await it.open()
        assert it.cluster.reads == 1
        it.clock_s = REREAD_S
        await it.open()
        await it.drop()
        await it.secret("mended")
        await it.open()
        assert (it.cluster.reads, len(it.made)) == (2, 1)
        it.clock_s = 2 * REREAD_S
        await it.open()
        it.clock_s = 9 * REREAD_S
        await it.open()
        assert (it.cluster.reads, len(it.made)) == (3, 2), "it is accepted now, as far as anybody knows"


@pytest.mark.parametrize(
    ("content", "text"),
    [("not JSON", "Secret ml/gcp of gcpCredentialsSecretRef: credentials.json is not JSON"), ("", "has no key")],
)
async def test_what_can_be_no_credential_is_said(content: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch) as it:
        if content:
            await it.secret(content)
        else:
            await it.cluster.create(SECRETS, {"metadata": {"name": "gcp"}, "data": {}}, namespace="ml")
        reason, said = await it.refusal()
        assert (reason, text in said) == ("CredentialInvalid", True)


async def test_a_missing_right_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch) as it:
        it.cluster.trouble = Forbidden("get secrets: no")
        reason, said = await it.refusal()
        assert reason == "SecretForbidden"
        assert said == (
            "the operator may not read Secret ml/gcp of gcpCredentialsSecretRef: an administrator can allow it with "
            "`kubectl create rolebinding holdfast-secrets --namespace=ml --clusterrole=holdfast-secrets "
            "--serviceaccount=holdfast-system:holdfast-operator`"
        )


async def test_an_api_server_that_does_not_answer_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch) as it:
        it.cluster.trouble = Unreachable("no answer")
        with pytest.raises(Unreachable):
            await it.open()


async def test_the_operators_own_identity_is_for_the_namespaces_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch) as it:
        cloud = await it.open("trusted", None)
        assert (cloud.account, it.made[0][1]) == (Account("lab-project", None), None)
        reason, said = await it.refusal("ml", None)
        assert (reason, "--own-cloud-identity" in said) == ("CredentialMissing", True)


async def test_a_forgotten_account_is_closed_and_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch) as it:
        await it.secret()
        account = (await it.open()).account
        await it.clouds.forget(account)
        assert (it.made[0][2].is_closed, it.clouds.known(account)) == (True, None)
        await it.open()
        assert len(it.made) == 2


async def test_a_refused_credential_whose_secret_is_gone_is_used_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that are there may still be deleted with it."""
    async with bench(monkeypatch) as it:
        await it.secret()
        first = await it.open()
        it.clouds.rejected(first.account)
        await it.drop()
        it.clock_s = REREAD_S
        assert (await it.open()).provider is first.provider


def test_an_account_is_named_without_a_secret_of_its_content() -> None:
    assert str(Account("lab-project", Key("ml", "gcp"))) == "project lab-project with Secret ml/gcp"
    assert str(Account("lab-project", None)) == "project lab-project with the operator's identity"
