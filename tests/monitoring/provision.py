"""Provides Prometheus and promtool, which look at the metrics, the rules and the dashboards.

    python -m tests.monitoring.provision

Those of the PATH are used where both are there. Else Debian's package is unpacked into the user's cache, when root asks
on Debian. It is not installed: that would start a server on this machine.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.control_plane.build import cache_folder
from tests.frameworks.provision import APT_GET, NotProvided, can_install, run

PACKAGE = "prometheus"  # the name of Debian's package; promtool is in it
PROGRAMS = ("prometheus", "promtool")


def prometheus_folder() -> Path:
    return cache_folder() / "prometheus"


def program(name: str) -> Path | None:
    """Where one of the programs is; None if it is not there."""
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    cached = prometheus_folder() / "usr" / "bin" / name
    return cached if cached.exists() else None


def are_there() -> bool:
    return all(program(name) is not None for name in PROGRAMS)


def obstacle() -> str:
    """Why the programs can't be had here; empty if they are there, or can be fetched."""
    if are_there() or can_install():
        return ""
    return (
        f"The tests with Prometheus are not run: they need Debian's package {PACKAGE}, "
        "which `make monitoring` fetches when root calls it on Debian, or prometheus and promtool on the PATH."
    )


def provide(out: TextIO) -> None:
    if why := obstacle():
        out.write(f"{why}\n")
        return
    with _alone():
        if not are_there():
            out.write(f"Fetching Prometheus for the tests into {prometheus_folder()}, once.\n")
            out.flush()
            _unpack()
    out.write(f"Prometheus for the tests is there: {program('prometheus')}\n")


def _unpack() -> None:
    """It is linked with the C library alone; what else the package depends on is for its pages."""
    folder = prometheus_folder()
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        _download(Path(partial))
        (package,) = Path(partial).glob("*.deb")
        run(["dpkg-deb", "--extract", str(package), f"{partial}/tree"], "Prometheus was not unpacked")
        found = subprocess.run([f"{partial}/tree/usr/bin/promtool", "--version"], capture_output=True, check=False)
        if found.returncode != 0:
            raise NotProvided(f"promtool does not run here: {found.stderr.decode(errors='replace').strip()}")
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted removal
        Path(partial, "tree").rename(folder)


def _download(folder: Path) -> None:
    failed = f"the package {PACKAGE} was not fetched"
    there = ("env", "--chdir", str(folder))
    # The cache is in a home folder, where nobody else may write.
    download = (*APT_GET, "-o", "APT::Sandbox::User=root", "download", PACKAGE)
    # `apt-get update` waits for no other one.
    with (cache_folder() / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run([*APT_GET, "update"], failed)
        run([*there, *download], failed)


@contextmanager
def _alone() -> Iterator[None]:
    prometheus_folder().parent.mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    try:
        provide(sys.stdout)
    except NotProvided as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
