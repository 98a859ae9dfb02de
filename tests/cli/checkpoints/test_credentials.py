"""Whose credentials a store is asked with, and that nobody sees them."""

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.core.objects import Secret
from holdfast.api.meta import ObjectMeta
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.checkpoints.settings import open_bucket
from holdfast.cli.checkpoints.access import StoreCredentials, environ_for, read_credentials
from holdfast.cli.checkpoints.operations import Which, select_checkpoint
from holdfast.cli.checkpoints.view import BucketView
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.runtime.process import utc_now
from tests.checkpoints.backends import fresh_prefix
from tests.checkpoints.servers.server import AZURE_ACCOUNT, AZURE_KEY, BUCKET, Server
from tests.cli.checkpoints.jobs import KEYS, fill_bucket, secret
from tests.cli.lab import CommandLab
from tests.control_plane.server import ControlPlane

S3 = {"type": "s3", "s3Bucket": "runs", "region": "eu-central-1", "endpoint": "https://minio.test:9000"}
GCS = {"type": "gcs", "gcsBucket": "runs"}
AZURE = {"type": "azure", "azureContainer": "runs", "azureAccount": "acme"}
SECRET_REF = {"secretRef": {"name": "login"}}


def kept(*parts: dict[str, Any]) -> CheckpointStorage:
    return msgspec.convert({name: value for part in parts for name, value in part.items()}, CheckpointStorage)


def given(**content: str) -> StoreCredentials:
    return StoreCredentials(content={key: value.encode() for key, value in content.items()}, source="a test")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


def test_a_secret_is_used_with_what_the_job_says_of_the_store() -> None:
    environ = environ_for(kept(S3), given(**KEYS))
    assert environ["AWS_ACCESS_KEY_ID"] == KEYS["AWS_ACCESS_KEY_ID"]
    assert (environ["AWS_REGION"], environ["AWS_ENDPOINT_URL"]) == ("eu-central-1", "https://minio.test:9000")


def test_two_halves_of_two_logins_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://tunnel.test")
    environ = environ_for(kept({"type": "s3", "s3Bucket": "runs"}), given(**KEYS))
    assert "AWS_SESSION_TOKEN" not in environ
    assert environ["AWS_ENDPOINT_URL"] == "http://tunnel.test"


def test_without_a_secret_this_users_own_credentials_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "mine")
    monkeypatch.setenv("UNRELATED", "x")
    environ = environ_for(kept(S3), given())
    assert environ["AWS_SESSION_TOKEN"] == "mine"
    assert "UNRELATED" not in environ


def test_a_key_that_containers_have_as_a_file_is_none_here() -> None:
    account = json.dumps({"client_email": "a@b"})
    environ = environ_for(kept(GCS, SECRET_REF), given(**{"service-account.json": account}))
    assert environ["GOOGLE_SERVICE_ACCOUNT_KEY"] == account
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in environ


def test_azures_key_goes_by_its_name_in_the_secret() -> None:
    environ = environ_for(kept(AZURE, SECRET_REF), given(AZURE_STORAGE_KEY="a2V5"))
    assert environ["AZURE_STORAGE_ACCOUNT_NAME"] == "acme"
    assert environ["AZURE_STORAGE_ACCOUNT_KEY"] == "a2V5"


def test_credentials_show_nothing_of_themselves() -> None:
    assert repr(given(**KEYS)) == "StoreCredentials(…)"
    assert (
        repr(Secret(metadata=ObjectMeta(), data={name: value.encode() for name, value in KEYS.items()})) == "Secret(…)"
    )


async def test_the_secret_is_read_with_the_users_own_rights(lab: CommandLab) -> None:
    await secret(lab, "aws-credentials", **KEYS)
    found = await read_credentials(lab.cluster, lab.namespace, kept(S3))
    assert found.content == {name: value.encode() for name, value in KEYS.items()}
    assert found.source == "the credentials of Secret aws-credentials were used"
    absent = await read_credentials(lab.cluster, lab.namespace, kept(S3, SECRET_REF))
    assert (absent.content, "since Secret login is not there" in absent.source) == ({}, True)
    unnamed = await read_credentials(lab.cluster, lab.namespace, kept(GCS))
    assert (unnamed.content, unnamed.source) == ({}, "the credentials in this command's environment were used")


async def test_every_store_is_reached_with_what_its_secret_holds(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = server.environ
    stores = {
        "s3": (kept(S3, {"endpoint": told.get("AWS_ENDPOINT_URL", ""), "s3Bucket": BUCKET}), given(**KEYS)),
        "gs": (kept(GCS, SECRET_REF, {"gcsBucket": BUCKET}), given(**_account_of(told))),
        "az": (
            kept(AZURE, SECRET_REF, {"azureContainer": BUCKET, "azureAccount": AZURE_ACCOUNT}),
            given(AZURE_STORAGE_KEY=AZURE_KEY),
        ),
    }
    storage, credentials = stores[server.scheme]
    if endpoint := told.get("AZURE_STORAGE_ENDPOINT"):
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    prefix = fresh_prefix()
    fill_bucket(server, tmp_path, prefix, checkpoint_name(1, 0))
    backend = BucketView(open_bucket(server.address(prefix), environ_for(storage, credentials)))
    assert select_checkpoint(backend.store, Which()) == checkpoint_name(1, 0)


def _account_of(told: Mapping[str, str]) -> dict[str, str]:
    file = told.get("GOOGLE_SERVICE_ACCOUNT")
    return {"service-account.json": Path(file).read_text()} if file else {}


async def test_a_secret_that_the_user_may_not_read_leaves_his_own_credentials(control_plane: ControlPlane) -> None:
    stranger = connect(load_config(str(control_plane.user("somebody"))), rng=Random(0), now=utc_now)
    try:
        found = await read_credentials(stranger, "default", kept(S3))
    finally:
        await stranger.close()
    assert found.content == {}
    assert found.source.endswith("since Secret aws-credentials may not be read by you")
