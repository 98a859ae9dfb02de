"""Large checkpoints pass through little memory: a sidecar has 80 MiB, its server and watch included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoints.manifest import MAX_FILES, checkpoint_name
from tests.checkpoints.backends import fresh_prefix
from tests.checkpoints.making import save
from tests.checkpoints.servers.server import Server

MIB = 1 << 20
# What is left for the rest is what an aiohttp server with a handful of routes takes.
LIMIT_MIB = 72
PROGRAM = """
import os, re, sys
from pathlib import Path
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.checkpoints.settings import open_store
from tests.checkpoints.making import ABOUT
what, address, folder = sys.argv[1:]
store, name = open_store(address, os.environ), checkpoint_name(1, 0)
work = {
    "put": lambda: store.put(name, Path(folder), ABOUT),
    "get": lambda: store.get(name, Path(folder)),
    "verify": lambda: store.verify(name),
}
work[what]()
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_mib(what: str, address: str, folder: Path, environ: dict[str, str]) -> float:
    argv = [sys.executable, "-c", PROGRAM, what, address, str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / 1024


@pytest.mark.parametrize("files", [1, 6])
def test_an_object_store_is_written_and_read_in_pieces(files: int, s3_server: Server, tmp_path: Path) -> None:
    content = {f"shard-{number}.bin": bytes([number]) * (120 * MIB // files) for number in range(files)}
    folder = save(tmp_path, checkpoint_name(1, 0), content)
    address, environ = s3_server.address(fresh_prefix()), dict(s3_server.environ)
    assert peak_mib("put", address, folder, environ) < LIMIT_MIB
    assert peak_mib("get", address, tmp_path / "got", environ) < LIMIT_MIB


def test_a_volume_is_digested_and_copied_in_pieces(tmp_path: Path) -> None:
    folder = save(tmp_path, checkpoint_name(1, 0), {"model.bin": bytes(120 * MIB)})
    assert peak_mib("put", str(tmp_path), folder, {}) < 30
    assert peak_mib("verify", str(tmp_path), folder, {}) < 30
    assert peak_mib("get", str(tmp_path), tmp_path / "attempt-1" / "got", {}) < 30


def test_a_checkpoint_of_as_many_files_as_are_allowed_takes_little_memory(tmp_path: Path) -> None:
    """Beside what a sidecar takes without any: 47 MiB, 60 with an object store."""
    names = (f"layers-{number // 100:03}/parameter-{number:05}.bin" for number in range(MAX_FILES))
    folder = save(tmp_path, checkpoint_name(1, 0), dict.fromkeys(names, b"weights"))
    assert peak_mib("put", str(tmp_path), folder, {}) < 40
    assert peak_mib("verify", str(tmp_path), folder, {}) < 40
