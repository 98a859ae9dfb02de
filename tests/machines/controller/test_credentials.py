"""Credentials of the cloud that are missing, wrong, revoked or deleted, and what becomes of the machines."""

import asyncio

from holdfast.api.meta import Key
from holdfast.cluster.resources import NAMESPACES, SECRETS
from holdfast.machines.joining import CannotJoin
from holdfast.providers.errors import CloudUnauthorized
from holdfast.providers.protocol import Provider
from tests.machines.controller.lab import NAMESPACE, condition, machine_lab, now, status
from tests.machines.fake_cloud import FakeCloud
from tests.runtime.virtual import virtual

SECRET = Key(NAMESPACE, "gcp")


@virtual
async def test_without_its_secret_nothing_is_launched_and_it_goes_on_when_the_secret_comes() -> None:
    async with machine_lab() as lab:
        await lab.cluster.delete(SECRETS, SECRET)
        await lab.order()
        it = await lab.until_phase("Launch")
        said = "Secret ml/gcp of gcpCredentialsSecretRef does not exist: create it"
        assert (condition(it, "Launched"), status(it).message) == (("False", "SecretMissing"), said)
        await asyncio.sleep(3600)
        assert not lab.cloud.calls["launch"]
        await lab.secret()
        await lab.until(lambda it: status(it).phase == "Serve", within_s=60)
        assert await lab.event_reasons() == ["GPUReady", "Joined", "Launched", "SecretMissing"]


@virtual
async def test_a_secret_that_can_be_no_credential_is_said_and_read_again() -> None:
    async with machine_lab() as lab:

        def connect(project: str, credential: bytes | None) -> Provider:
            if credential != b"good":
                raise CloudUnauthorized(
                    "credentials.json is of type 'external_account', and only service_account is accepted"
                )
            return lab.cloud

        lab.connect = connect
        await lab.order()
        it = await lab.until_phase("Launch")
        assert condition(it, "Launched") == ("False", "CredentialInvalid")
        assert "Secret ml/gcp of gcpCredentialsSecretRef: credentials.json is of type" in (status(it).message or "")
        await lab.cluster.delete(SECRETS, SECRET)
        await lab.secret(content="good")
        await lab.until(lambda it: status(it).phase == "Serve", within_s=60)


@virtual
async def test_a_revoked_key_launches_nothing_and_a_new_one_does() -> None:
    async with machine_lab() as lab:
        revoked = FakeCloud(now)
        revoked.errors["launch"] = CloudUnauthorized("the key was revoked")
        lab.connect = lambda project, credential: revoked if credential == b"old" else lab.cloud
        await lab.cluster.delete(SECRETS, SECRET)
        await lab.secret(content="old")
        await lab.order()
        it = await lab.until(lambda it: condition(it, "Launched") == ("False", "Unauthorized"))
        await asyncio.sleep(1200)
        assert status(await lab.get()).phase == "Launch", "it is not given up"
        assert revoked.calls["launch"] < 40
        versions = it.metadata.resource_version
        assert (await lab.get()).metadata.resource_version == versions, "tried again without a write"
        await lab.cluster.delete(SECRETS, SECRET)
        await lab.secret(content="new")
        await lab.until(lambda it: status(it).phase == "Serve", within_s=120)


@virtual
async def test_what_a_join_would_lack_is_said_before_a_machine_costs_anything() -> None:
    async with machine_lab() as lab:
        lab.joiner.obstacle = CannotJoin("SecretMissing", "Secret ml/join of kubeadmJoinConfig does not exist")
        await lab.order()
        it = await lab.until(lambda it: condition(it, "Launched") == ("False", "SecretMissing"))
        assert "kubeadmJoinConfig" in (status(it).message or "")
        assert not lab.cloud.calls["launch"]
        lab.joiner.obstacle = None
        await lab.until(lambda it: status(it).phase == "Serve", within_s=120)


@virtual
async def test_a_machine_goes_with_the_credential_in_memory_when_its_secret_is_deleted() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await lab.cluster.delete(SECRETS, SECRET)
        await lab.delete()
        await lab.until_absent()
        assert lab.cloud.machines == {}


@virtual
async def test_a_machine_goes_when_its_namespace_is_deleted() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        await lab.cluster.delete(NAMESPACES, Key("", NAMESPACE))
        await lab.until_absent()
        assert lab.cloud.machines == {}


@virtual
async def test_after_a_restart_without_its_secret_the_object_stays_and_names_the_machine() -> None:
    async with machine_lab() as lab:
        await lab.order()
        await lab.until_serving()
        name = lab.cloud.only()
        await lab.stop()
        await lab.cluster.delete(SECRETS, SECRET)
        await lab.delete()
        lab.start()
        it = await lab.until_phase("End")
        assert status(it).message == (
            f"machine {name} in zone us-central1-a of project lab-project can't be deleted: Secret ml/gcp of "
            "gcpCredentialsSecretRef does not exist: create it"
        )
        await asyncio.sleep(1800)
        assert list(lab.cloud.machines) == [name]
        await lab.secret()
        await lab.until_absent()
        assert lab.cloud.machines == {}
