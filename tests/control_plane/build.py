"""Build the Kubernetes control plane that the tests run against, once, into the user's cache.

    python -m tests.control_plane.build

Nothing is built twice: the folder's name is a digest of all that the binaries are made from. The version of Go is
not part of it, so that a new Go costs nobody ten minutes, and finding everything built needs no Go at all.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

from tests.control_plane.component import spawn
from tests.control_plane.toolchain import NoGo, find_go, parse

HERE = Path(__file__).parent
KUBERNETES = "k8s.io/kubernetes"
ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
REDRAW_S, REPEAT_S = 1.0, 60.0
WHAT = "control plane"


class Binary(NamedTuple):
    name: str
    package: str
    module: Path  # the folder of the go.mod that pins it


BINARIES = (
    Binary("etcd", "go.etcd.io/etcd/server/v3", HERE),
    Binary("kube-apiserver", f"{KUBERNETES}/cmd/kube-apiserver", HERE),
    Binary("kube-controller-manager", f"{KUBERNETES}/cmd/kube-controller-manager", HERE),
    Binary("kube-scheduler", f"{KUBERNETES}/cmd/kube-scheduler", HERE),
    Binary("kubectl", f"{KUBERNETES}/cmd/kubectl", HERE),
    Binary("kwok", "sigs.k8s.io/kwok/cmd/kwok", HERE / "kwok"),
)


class BuildFailed(Exception):
    """The compiler said no; the text ends with its last lines."""


def cache_folder() -> Path:
    """Where everything that outlives a checkout is kept."""
    if own := os.environ.get("HOLDFAST_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def binary_folder(binaries: Sequence[Binary] = BINARIES, *, what: str = WHAT) -> Path:
    """Where these binaries are, or will be when they are built."""
    return cache_folder() / what.replace(" ", "-") / key(binaries) / "bin"


def missing(folder: Path, binaries: Sequence[Binary] = BINARIES) -> list[Binary]:
    return [binary for binary in binaries if not (folder / binary.name).exists()]


def key(binaries: Sequence[Binary]) -> str:
    """A digest of all that makes a binary what it is."""
    digest = hashlib.sha256(repr([ENVIRONMENT, sys.platform, platform.machine()]).encode())
    for module in sorted({binary.module for binary in binaries}):
        digest.update(repr(flags(module)).encode())
        for file in ("go.mod", "go.sum"):
            digest.update(hashlib.sha256((module / file).read_bytes()).digest())
    return digest.hexdigest()[:16]


def flags(module: Path) -> list[str]:
    """What is said to the compiler; Kubernetes' programs are told their version, or they call themselves v0.0.0."""
    linker = "-s -w"
    if found := re.search(rf"^\s*{KUBERNETES} (v(\d+)\.(\d+)\.\S+)", (module / "go.mod").read_text(), re.MULTILINE):
        version = "k8s.io/component-base/version"
        linker += (
            f" -X {version}.gitVersion={found[1]} -X {version}.gitMajor={found[2]} -X {version}.gitMinor={found[3]}"
        )
    return ["-trimpath", "-buildvcs=false", f"-ldflags={linker}"]


def needed_go(binaries: Sequence[Binary]) -> str:
    """The newest Go that one of the modules asks for."""
    texts = [(binary.module / "go.mod").read_text() for binary in binaries]
    versions = [found[1] for text in texts if (found := re.search(r"^go (\S+)", text, re.MULTILINE))]
    return max(versions, key=parse)


def build(out: TextIO, binaries: Sequence[Binary] = BINARIES, *, what: str = WHAT) -> Path:
    """Make sure that all binaries are there, and return their folder."""
    folder = binary_folder(binaries, what=what)
    if not missing(folder, binaries):
        out.write(f"The {what} is built: {folder}\n")
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent, what, out):
        if wanted := missing(folder, binaries):  # another build may have ended while this one waited
            out.write(f"Building the {what}: several minutes on two cores, once.\n")
            out.flush()
            _build_all(wanted, binaries, folder, out)
    out.write(f"Built: {folder}\n")
    return folder


def _build_all(wanted: Sequence[Binary], binaries: Sequence[Binary], folder: Path, out: TextIO) -> None:
    go = find_go(cache_folder(), needed=needed_go(binaries))
    started = time.monotonic()
    for binary in wanted:
        doing = f"{binary.name} ({binaries.index(binary) + 1} of {len(binaries)})"
        _install(go, binary, folder, Progress(out, doing, started))


class Progress:
    """One line that counts the seconds on a terminal; elsewhere, a line now and then."""

    def __init__(self, out: TextIO, doing: str, started: float) -> None:
        self._out = out
        self._doing = doing
        self._started = started
        self._terminal = out.isatty()
        self._next = 0.0

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (REDRAW_S if self._terminal else REPEAT_S)
            self._write("building", end="" if self._terminal else "\n")

    def done(self) -> None:
        self._write("built", end="\n")

    def _write(self, verb: str, end: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        again = "\r\x1b[K" if self._terminal else ""
        self._out.write(f"{again}  {minutes}:{seconds:02d} {verb} {self._doing}{end}")
        self._out.flush()


def _install(go: Path, binary: Binary, folder: Path, progress: Progress) -> None:
    """Build into a folder aside and move: a binary is either whole or not there."""
    aside = folder.parent / "unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    log = folder.parent / f"{binary.name}.log"
    log.unlink(missing_ok=True)
    command = [str(go), "install", *flags(binary.module), binary.package]
    process = spawn(command, log=log, cwd=binary.module, environment={**os.environ, **ENVIRONMENT, "GOBIN": str(aside)})
    while process.poll() is None:
        progress.tick()
        time.sleep(0.05)
    if process.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BuildFailed(f"{' '.join(command)} in {binary.module} failed. The end of {log}:\n{last}")
    (made,) = aside.iterdir()  # named for the package's last part, which is not always the program's name
    made.rename(folder / binary.name)
    aside.rmdir()
    progress.done()


@contextmanager
def _locked(folder: Path, what: str, out: TextIO) -> Iterator[None]:
    """One build at a time; the lock goes with the process that holds it."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            out.write(f"Waiting for another build of the {what} to end.\n")
            out.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(binaries: Sequence[Binary] = BINARIES, *, what: str = WHAT) -> int:
    try:
        build(sys.stdout, binaries, what=what)
    except (BuildFailed, NoGo) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted. What is built stays; run it again to go on.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
