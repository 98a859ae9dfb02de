"""Networks that fail: what was sent is not sent again, what was read is not read again, and nothing is mixed up."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.errors import StoreUnreachable
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import resume
from holdfast.checkpoints.settings import open_bucket
from tests.checkpoints.backends import fresh_prefix
from tests.checkpoints.making import ABOUT, content, save
from tests.checkpoints.servers.proxy import Relay
from tests.checkpoints.servers.server import Server, s3_environ

NAME = checkpoint_name(1, 0)
MIB = 1 << 20


@pytest.fixture
def relay(s3_server: Server) -> Iterator[Relay]:
    with Relay(s3_server.port).running() as relay:
        yield relay


def store_behind(relay: Relay, prefix: str, *, workers: int = 4) -> ObjectStore:
    bucket = open_bucket(f"s3://checkpoints/{prefix}", s3_environ(relay.port), retry_s=2)
    return ObjectStore(bucket, workers=workers)


def test_a_download_that_breaks_again_and_again_is_gone_on_with(relay: Relay, tmp_path: Path) -> None:
    files = {"model.bin": os.urandom(MIB) * 12}
    store = store_behind(relay, fresh_prefix())
    store.put(NAME, save(tmp_path / "volume", NAME, files), ABOUT)
    # Fresh connections: those of the upload are not cut.
    again = ObjectStore(open_bucket(store.address, s3_environ(relay.port), retry_s=30))
    relay.cuts = [1 * MIB, 6 * MIB, 5 * MIB, 4 * MIB]
    again.get(NAME, tmp_path / "got")
    assert content(tmp_path / "got") == files
    assert relay.broken > 0, "the test has cut nothing"


def test_an_upload_is_repeated_without_what_was_sent_before(relay: Relay, tmp_path: Path) -> None:
    files = {f"shard-{number}.bin": os.urandom(2 * MIB) for number in range(6)}
    folder = save(tmp_path / "volume", NAME, files)
    prefix = fresh_prefix()
    # The line dies for good in the middle of the fifth file.
    relay.lasts = 9 * MIB
    with pytest.raises(StoreUnreachable, match="it is tried again"):
        store_behind(relay, prefix, workers=1).put(NAME, folder, ABOUT)
    relay.lasts = None
    relay.sent = 0
    store = store_behind(relay, prefix, workers=1)
    store.put(NAME, folder, ABOUT)
    assert relay.sent < 5 * MIB, "files that were there are sent again"
    store.verify(NAME)


def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one(relay: Relay, tmp_path: Path) -> None:
    store = store_behind(relay, fresh_prefix())
    store.put(NAME, save(tmp_path / "volume", NAME), ABOUT)
    relay.lasts = 0
    cut_off = store_behind(relay, "ml/any")
    with pytest.raises(StoreUnreachable):
        resume(cut_off, tmp_path / "attempt-1", 1, ABOUT, lambda _: None)
    with pytest.raises(StoreUnreachable):
        cut_off.read_decision(1)


def test_a_restore_keeps_what_it_has_when_the_network_goes(relay: Relay, tmp_path: Path) -> None:
    files = {f"shard-{number}.bin": os.urandom(2 * MIB) for number in range(4)}
    prefix = fresh_prefix()
    store_behind(relay, prefix).put(NAME, save(tmp_path / "volume", NAME, files), ABOUT)
    store = store_behind(relay, prefix, workers=1)
    relay.lasts = 5 * MIB
    with pytest.raises(StoreUnreachable):
        store.get(NAME, tmp_path / "got")
    partial = tmp_path / ".holdfast-restoring-got"
    there = [path.name for path in partial.iterdir() if path.read_bytes() == files[path.name]]
    assert len(there) == 2
    for name in there:
        os.utime(partial / name, (1, 1))
    relay.lasts = None
    store_behind(relay, prefix).get(NAME, tmp_path / "got")
    assert content(tmp_path / "got") == files
    assert [(tmp_path / "got" / name).stat().st_mtime for name in there] == [1, 1], "they are read again"
