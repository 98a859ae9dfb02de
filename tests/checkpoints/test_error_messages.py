"""What a person is told when a store does not do what it should."""

from pathlib import Path

import pytest

from holdfast.checkpoints.errors import (
    AccessDenied,
    BucketNotFound,
    ReadOnly,
    StorageFull,
    StoreError,
    StoreUnreachable,
)
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import resume
from holdfast.checkpoints.settings import open_bucket
from tests.checkpoints.making import ABOUT, save
from tests.checkpoints.servers.refusing import Refusing
from tests.checkpoints.servers.server import AZURE_KEY, Server, s3_environ, s3_signed

NAME = checkpoint_name(1, 0)
SECRET = "wJalrXUtnFEMI/K7MDENG"


def store_at(port: int) -> ObjectStore:
    return ObjectStore(open_bucket("s3://checkpoints/ml/job", s3_environ(port), retry_s=0.5))


@pytest.mark.parametrize(
    ("status", "code", "kind", "advice"),
    [
        (403, "InvalidAccessKeyId", AccessDenied, "correct the Secret"),
        (403, "SignatureDoesNotMatch", AccessDenied, "correct the Secret"),
        (400, "ExpiredToken", AccessDenied, "correct the Secret"),
        (401, "Unauthorized", AccessDenied, "correct the Secret"),
        (403, "RequestTimeTooSkewed", AccessDenied, "clock of this machine is off"),
        (403, "AccessDenied", AccessDenied, "allow list and get"),
        (404, "NoSuchBucket", BucketNotFound, "create it"),
        (503, "SlowDown", StoreUnreachable, "it is tried again"),
        (500, "InternalError", StoreUnreachable, "it is tried again"),
        (429, "TooManyRequests", StoreUnreachable, "it is tried again"),
        (507, "XMinioStorageFull", StorageFull, "keep fewer checkpoints"),
        (418, "Teapot", StoreError, "the store's own log"),
    ],
)
def test_an_answer_is_explained(status: int, code: str, kind: type[StoreError], advice: str, tmp_path: Path) -> None:
    with Refusing(status, code).running() as server:
        with pytest.raises(StoreError, match=advice) as raised:
            resume(store_at(server.port), tmp_path / "attempt-1", 1, ABOUT, lambda _: None)
        assert type(raised.value) is kind
        assert "s3://checkpoints/ml/job" in str(raised.value)
        assert code in str(raised.value)
        assert not (tmp_path / "attempt-1").exists()


@pytest.mark.parametrize(
    ("status", "code", "kind", "advice"),
    [
        (403, "AccessDenied", ReadOnly, "allow put and delete"),
        (403, "QuotaExceeded", StorageFull, "free space"),
        (404, "NoSuchBucket", BucketNotFound, "create it"),
        (404, "Whatever", BucketNotFound, "create it"),
        (403, "InvalidAccessKeyId", AccessDenied, "correct the Secret"),
    ],
)
def test_a_refused_write_is_explained(
    status: int, code: str, kind: type[StoreError], advice: str, tmp_path: Path
) -> None:
    folder = save(tmp_path, NAME)
    with Refusing(status, code, reading=True).running() as server:
        with pytest.raises(StoreError, match=advice) as raised:
            store_at(server.port).put(NAME, folder, ABOUT)
        assert type(raised.value) is kind
    assert (folder / "model.bin").exists()


def test_secrets_are_in_no_error(server: Server, tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    elsewhere = ObjectStore(open_bucket(server.address("job", bucket="another"), server.environ, retry_s=0.5))
    with pytest.raises(BucketNotFound) as raised:
        elsewhere.put(NAME, folder, ABOUT)
    shown = f"{raised.value!r} {raised.value.__cause__!r} {raised.value.__suppress_context__}"
    assert SECRET not in shown
    assert AZURE_KEY not in shown
    assert shown.endswith("True"), "a traceback would show what obstore said"


def test_a_missing_bucket_is_no_empty_store(server: Server, tmp_path: Path) -> None:
    elsewhere = ObjectStore(open_bucket(server.address("job", bucket="another"), server.environ, retry_s=0.5))
    with pytest.raises(BucketNotFound, match="another"):
        resume(elsewhere, tmp_path / "attempt-1", 1, ABOUT, lambda _: None)


def test_s3_does_not_accept_a_stranger_and_lets_a_reader_read(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    with s3_signed(tmp_path) as servers:
        stranger, reader = (ObjectStore(open_bucket(one.address("job"), one.environ, retry_s=0.5)) for one in servers)
        with pytest.raises(AccessDenied, match="correct the Secret"):
            stranger.names(1)
        with pytest.raises(AccessDenied, match="correct the Secret"):
            stranger.put(NAME, folder, ABOUT)
        assert reader.names(1) == []
        with pytest.raises(ReadOnly, match="allow put and delete below the prefix"):
            reader.put(NAME, folder, ABOUT)
        with pytest.raises(ReadOnly, match="allow put and delete"):
            reader.write_decision(1, b"{}")


def test_azure_does_not_accept_another_key(azure_server: Server) -> None:
    environ = {**azure_server.environ, "AZURE_STORAGE_ACCOUNT_KEY": "c29tZXRoaW5nIGVsc2U="}
    stranger = ObjectStore(open_bucket(azure_server.address("job"), environ, retry_s=0.5))
    with pytest.raises(AccessDenied, match="correct the Secret") as raised:
        stranger.names(1)
    assert "c29tZXRoaW5n" not in str(raised.value)


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(StoreUnreachable, match="check the endpoint"):
        store_at(1).names(1)
