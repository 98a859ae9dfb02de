"""How a store is reached, and what is told to whom."""

import subprocess
import sys
from pathlib import Path

import pytest
from obstore.exceptions import UnknownConfigurationKeyError

from holdfast.checkpoints import settings
from holdfast.checkpoints.errors import InvalidStoreUrl, StoreError
from holdfast.checkpoints.settings import AWS, AZURE, GOOGLE, open_bucket, open_store
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.servers.server import AZURE_KEY, s3_environ


@pytest.mark.parametrize("address", ["s3://bucket/ml/job", "gs://bucket/ml/job", "az://container/ml/job"])
def test_the_address_says_which_store(address: str) -> None:
    environ = {**s3_environ(1), "AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
    assert open_store(address, environ).address == address


@pytest.mark.parametrize(
    ("address", "variables"),
    [("s3://bucket/job", AWS), ("gs://bucket/job", GOOGLE), ("az://container/job", AZURE)],
)
def test_every_variable_that_is_passed_on_is_one_that_obstore_knows(address: str, variables: tuple[str, ...]) -> None:
    assert [name for name in variables if not is_known(address, name)] == []


def is_known(address: str, name: str) -> bool:
    """Whether obstore takes it as a setting; that the value is of no use is another matter."""
    try:
        open_bucket(address, {"AZURE_STORAGE_ACCOUNT_NAME": "account", name: "true"})
    except InvalidStoreUrl as error:
        return not isinstance(error.__context__, UnknownConfigurationKeyError)
    return True


def test_a_name_that_obstore_does_not_know_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "GOOGLE", ("GOOGLE_NONSENSE",))
    assert not is_known("gs://bucket/job", "GOOGLE_NONSENSE")


def test_a_path_is_a_volume(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), {})
    assert isinstance(store, VolumeStore)
    assert store.root == tmp_path


@pytest.mark.parametrize(
    "address",
    [
        *("", "bucket/folder", "ftp://bucket/folder", "s3://", "s3:///folder", "s3://bucket", "s3://bucket/"),
        *("s3://bucket/../other", "s3://bucket/a//b", "s3://bucket/./a", "gs://bucket/a/..", "relative/path"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidStoreUrl, match="write s3://bucket/folder"):
        open_store(address, {})


@pytest.mark.parametrize(
    "address", ["https://me:hunter2@host/bucket?sig=hunter2#hunter2", "s3://me:hunter2@bucket/folder"]
)
def test_a_login_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(InvalidStoreUrl) as raised:
        open_store(address, {})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "environ"),
    [
        ("gs://bucket/job", {"GOOGLE_APPLICATION_CREDENTIALS": "{broken}"}),
        ("gs://bucket/job", {"GOOGLE_SERVICE_ACCOUNT": "/nowhere/service-account.json"}),
        ("az://container/job", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "not base64 !"}),
        ("az://container/job", {}),
    ],
)
def test_settings_that_can_not_be_used_are_refused_without_repeating_them(
    address: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text('{"private_key": "hunter2"')
    environ = {name: value.replace("{broken}", str(tmp_path / "broken.json")) for name, value in environ.items()}
    with pytest.raises(StoreError) as raised:
        open_bucket(address, environ, retry_s=0.1).objects("x")
    said = str(raised.value)
    assert "not base64" not in said
    assert "hunter2" not in said
    assert address in said


def test_a_job_with_a_volume_does_not_load_obstore() -> None:
    """The sidecar is in every pod, and has 80 MiB."""
    modules = "settings", "resume", "retention", "completeness", "fetch"
    program = "\n".join(
        (
            "import sys",
            *(f"import holdfast.checkpoints.{name}" for name in modules),
            "from holdfast.checkpoints.settings import open_store",
            "open_store('/tmp', {}).names(0)",
            "heavy = {'obstore', 'msgspec', 'aiohttp', 'yaml', 'asyncio', 'typer'} & set(sys.modules)",
            "sys.exit(' '.join(heavy) or 0)",
        )
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


KEY = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
TOKEN = {**KEY, "AWS_SESSION_TOKEN": "hunter2"}
OVER_HTTP = {"AWS_ENDPOINT_URL": "http://minio.storage.svc:9000"}
AZURITE = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": "http://azurite.storage.svc:10000/a"}
WORKLOAD = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": "/token"}
GCS = (
    '{"gcs_base_url": "http://gcs.storage.svc:4443", "disable_oauth": %s, '
    '"client_email": "", "private_key": "", "private_key_id": ""}'
)


@pytest.mark.parametrize(
    ("address", "environ", "is_refused"),
    [
        ("s3://bucket/job", {**KEY, **OVER_HTTP}, False),  # requests are signed: the key itself is not sent
        ("s3://bucket/job", {**TOKEN, **OVER_HTTP}, True),
        ("s3://bucket/job", OVER_HTTP, True),  # those of the machine or the service account are temporary
        ("s3://bucket/job", {**TOKEN, **OVER_HTTP, "AWS_ALLOW_HTTP": "true"}, False),
        ("s3://bucket/job", {**TOKEN, **OVER_HTTP, "AWS_ALLOW_HTTP": "false"}, True),
        ("s3://bucket/job", {**TOKEN, "AWS_ENDPOINT_URL": "HTTP://minio.storage.svc:9000"}, True),
        ("s3://bucket/job", {**TOKEN, "AWS_ENDPOINT_URL": "https://minio.storage.svc:9000"}, False),
        ("s3://bucket/job", {**TOKEN, "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}, False),
        ("s3://bucket/job", TOKEN, False),
        ("az://container/job", {**AZURITE, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}, False),
        ("az://container/job", {**AZURITE, **WORKLOAD}, True),
        ("az://container/job", {**AZURITE, **WORKLOAD, "AZURE_ALLOW_HTTP": "true"}, False),
        ("gs://bucket/job", {"GOOGLE_SERVICE_ACCOUNT_KEY": GCS % "true"}, False),
        ("gs://bucket/job", {"GOOGLE_SERVICE_ACCOUNT_KEY": GCS % "false"}, True),
    ],
)
def test_credentials_are_sent_unencrypted_only_if_somebody_asks_for_it(
    address: str, environ: dict[str, str], is_refused: bool
) -> None:
    if not is_refused:
        open_bucket(address, environ)
        return
    with pytest.raises(
        InvalidStoreUrl, match=r"would be sent unencrypted to '(http|HTTP)://.*: use https://, or "
    ) as raised:
        open_bucket(address, environ)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("endpoint", ["https://127.0.0.1:9", ""])
def test_only_an_address_with_http_is_reached_without_tls(endpoint: str) -> None:
    assert not settings.is_unencrypted("s3://bucket/job", {**KEY, "AWS_ENDPOINT_URL": endpoint})
    assert settings.is_unencrypted("s3://bucket/job", {**KEY, **OVER_HTTP})
