"""Processes that upload to a real server, or restore from it, and are killed at any moment."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.checkpoints.manifest import CheckpointManifest, checkpoint_name
from holdfast.checkpoints.resume import resume
from holdfast.checkpoints.settings import open_store
from tests.checkpoints.backends import fresh_prefix
from tests.checkpoints.making import ABOUT, content, save
from tests.checkpoints.servers.server import Server

EPOCHS = (1, 2, 3)
MOMENTS = 12


def checkpoint(epoch: int) -> dict[str, bytes]:
    """Several files, and one that is sent in parts."""
    small = {f"shard-{number}.bin": bytes([epoch, number]) * 300_000 for number in range(4)}
    return {**small, "model.bin": bytes([epoch]) * (6 << 20)}


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    for epoch in EPOCHS:
        save(folder, checkpoint_name(epoch, 0), checkpoint(epoch))
    return folder


@pytest.fixture(scope="module")
def undisturbed_s(volume: Path, s3_server: Server) -> float:
    """How long all of it takes, from the first sign of life."""
    with start("put", s3_server.address(fresh_prefix()), volume, s3_server) as child:
        assert child.stdout is not None
        child.stdout.readline()
        began = time.monotonic()
        assert child.stdout.read().split() == [b"1", b"2", b"3"]
        return time.monotonic() - began


def start(what: str, address: str, folder: Path, server: Server) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "tests.checkpoints.uploading", what, address, str(folder)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **server.environ})


def killed(child: subprocess.Popen[bytes], after_s: float) -> list[str]:
    """What it said before it was killed, some time after its first line."""
    assert child.stdout is not None
    child.stdout.readline()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(after_s)
    child.kill()
    with child:
        return child.stdout.read().decode().split()


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_an_upload_that_is_killed_loses_nothing_that_was_complete(
    moment: int, volume: Path, undisturbed_s: float, s3_server: Server, tmp_path: Path
) -> None:
    address = s3_server.address(fresh_prefix())
    said = killed(start("put", address, volume, s3_server), undisturbed_s * (moment + 0.5) / MOMENTS)
    uploaded = max(map(int, said), default=0)
    store = open_store(address, s3_server.environ)
    got = resume(store, tmp_path / "attempt-1", 1, ABOUT, lambda _: None)
    assert (got.epoch if got else 0) >= uploaded
    if got:
        assert content(tmp_path / "attempt-1" / got.folder_name) == checkpoint(got.epoch)
    # And the next one goes on where this one was killed.
    child = start("put", address, volume, s3_server)
    assert child.communicate()[0].split()[1:] == [b"1", b"2", b"3"]
    assert [store.verify(name).epoch for name in store.names(0)] == [3, 2, 1]


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_restore_that_is_killed_leaves_the_whole_or_nothing(
    moment: int, volume: Path, undisturbed_s: float, s3_server: Server, tmp_path: Path
) -> None:
    address = s3_server.address(fresh_prefix())
    store = open_store(address, s3_server.environ)
    saved: CheckpointManifest = store.put(checkpoint_name(3, 0), volume / checkpoint_name(3, 0).folder, ABOUT)
    # One checkpoint of three, and there is no need to wait for the server's disk.
    killed(start("resume", address, tmp_path, s3_server), undisturbed_s / 3 * moment / MOMENTS)
    target = tmp_path / "attempt-1" / "checkpoint-epoch-3"
    assert not target.exists() or content(target) == checkpoint(3)
    child = start("resume", address, tmp_path, s3_server)
    assert child.communicate()[0].split()[-1] == b"3"
    assert content(target) == checkpoint(3)
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint-epoch-3"]
    assert store.manifest(checkpoint_name(3, 0)) == saved
