"""Provides the object stores and the registry that the tests run against.

    python -m tests.checkpoints.provision

S3 is moto's server, which is among the development requirements. Azure is azurite, a Node.js program; Google Cloud
Storage is fake-gcs-server, a Go program. Both go into the user's cache. The registry is Debian's docker-registry, and
skopeo, also Debian's, looks at our images. Nothing is installed twice: the folders are named for the versions. Where
Node.js, Go or Debian's packages can't be had, the tests that need them are not run, and the end of the tests' output
says so.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.control_plane.build import cache_folder
from tests.control_plane.toolchain import NoGo, find_go
from tests.frameworks.provision import NotProvided, can_install, install

AZURITE = "3.35.0"
FAKE_GCS = "v1.56.1"
GO_NEEDED = "1.25"
# Debian's packages have the names of their programs.
REGISTRY = "docker-registry"
SKOPEO = "skopeo"


def stores_folder() -> Path:
    return cache_folder() / "stores"


def azurite() -> Path:
    """azurite's program, whether it is there or not."""
    return stores_folder() / f"azurite-{AZURITE}" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def fake_gcs() -> Path:
    return stores_folder() / f"fake-gcs-server-{FAKE_GCS}" / "fake-gcs-server"


def no_go() -> Path:
    """Why fake-gcs-server could not be built here."""
    return stores_folder() / "no-go"


def lacking() -> dict[str, str]:
    """The stores that can't be had on this machine, and what is missing."""
    found = {}
    if shutil.which("node") is None or not (azurite().exists() or shutil.which("npm")):
        found["azure"] = "The Azure tests are not run: azurite needs Node.js 20 or newer with npm. Install it."
    if no_go().exists() and not fake_gcs().exists():
        found["gcs"] = f"The Google Cloud Storage tests are not run: fake-gcs-server needs Go. {no_go().read_text()}"
    if (missing := missing_packages()) and not can_install():
        found["registry"] = (
            f"The tests with a registry are not run: they need Debian's packages {' and '.join(missing)}, "
            "which `make stores` installs when root calls it on Debian."
        )
    return found


def missing_packages() -> list[str]:
    return [name for name in (REGISTRY, SKOPEO) if shutil.which(name) is None]


def provide(out: TextIO) -> None:
    with _alone(out):
        if "azure" not in lacking() and not azurite().exists():
            _say(out, f"Installing azurite {AZURITE} for the tests, once.")
            _provide(azurite(), _install_azurite)
        if not fake_gcs().exists():
            _say(out, f"Building fake-gcs-server {FAKE_GCS} for the tests, once: some minutes.")
            _provide_fake_gcs()
        if "registry" not in lacking() and (packages := missing_packages()):
            _say(out, f"Installing for the tests, once: {', '.join(packages)}")
            install(*packages)
        for missing in lacking().values():
            _say(out, missing)
    _say(out, f"The object stores for the tests are there: {stores_folder()}")


def _provide_fake_gcs() -> None:
    try:
        go = find_go(cache_folder(), needed=GO_NEEDED)
    except NoGo as error:
        no_go().write_text(str(error))
        return
    no_go().unlink(missing_ok=True)
    environment = {"GOFLAGS": "", "GOWORK": "off", "CGO_ENABLED": "0"}
    command = [str(go), "install", f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}"]
    _provide(fake_gcs(), lambda folder: _run(command, folder, {**environment, "GOBIN": str(folder)}))


def _provide(program: Path, install: Callable[[Path], None]) -> None:
    """Install under another name, so that what was interrupted is not taken for whole."""
    folder = next(parent for parent in program.parents if parent.parent == stores_folder())
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    install(partial)
    partial.rename(folder)
    assert program.exists(), f"{program} was installed just now"


def _install_azurite(folder: Path) -> None:
    (folder / "package.json").write_text("{}")
    _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"azurite@{AZURITE}"], folder)


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.decode(errors="replace").strip().splitlines()[-10:])
        raise NotProvided(f"`{' '.join(command)}` failed; it said last:\n{last}")


@contextmanager
def _alone(out: TextIO) -> Iterator[None]:
    stores_folder().mkdir(parents=True, exist_ok=True)
    with (stores_folder() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(out, "Waiting for another installation of the object stores to end.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(out: TextIO, text: str) -> None:
    out.write(f"{text}\n")
    out.flush()


def main() -> int:
    try:
        provide(sys.stdout)
    except NotProvided as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
