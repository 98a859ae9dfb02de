"""Provides what real nodes need: programs of this system, Debian's where root asks for them, and those that we build.

    python -m tests.nodes.provision

Where nodes can't be, it says what is missing, and builds nothing.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from tests.control_plane.build import cache_folder
from tests.frameworks.provision import NotProvided, can_install, install, run
from tests.nodes import build, cgroups
from tests.nodes.criu import provide_criu
from tests.nodes.login import provide_login
from tests.nodes.machine import UNSHARE

CHECKOUT = Path(__file__).parents[2]

# Debian's packages by what they bring.
PACKAGES = {
    "runc": "runc",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "ldd": "libc-bin",
    "hostname": "hostname",
    "buildah": "buildah",
}
PLUGINS = ("bridge", "host-local", "loopback")
PLUGINS_PACKAGE = "containernetworking-plugins"
PLUGIN_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))

# What a machine is made of, in namespaces that go at once.
TRIAL = "ip link add name one type bridge && ip link add name two type veth && mount -t tmpfs tmpfs /run"


def plugin_folder() -> Path | None:
    """Where the plugins are that connect pods."""
    return next((one for one in PLUGIN_FOLDERS if all((one / name).exists() for name in PLUGINS)), None)


def wheels() -> Path:
    """The folder with the packages that the Dockerfile installs: its build in a test reaches no package index."""
    files = [CHECKOUT / name for name in ("requirements.txt", "requirements-build.txt")]
    digest = hashlib.sha256(repr([sys.version_info[:2], platform.machine()]).encode())
    for file in files:
        digest.update(file.read_bytes())
    return cache_folder() / "wheels" / digest.hexdigest()[:16]


def provide_wheels(out: TextIO) -> None:
    folder = wheels()
    if folder.exists():
        return
    out.write(f"Fetching the packages of the image for the tests into {folder}, once.\n")
    out.flush()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--only-binary", ":all:"]
        required = ["-r", str(CHECKOUT / "requirements.txt"), "-r", str(CHECKOUT / "requirements-build.txt")]
        run([*command, "--dest", partial, *required], "the packages of the image were not fetched")
        Path(partial).chmod(0o755)
        Path(partial).rename(folder)
        Path(partial).mkdir()  # what the context removes


def missing_packages() -> list[str]:
    found = {PACKAGES[name] for name in PACKAGES if shutil.which(name, path=_path()) is None}
    return sorted(found | ({PLUGINS_PACKAGE} if plugin_folder() is None else set()))


def obstacles() -> list[str]:
    """What this machine lacks, each in words; packages that can be installed here are no obstacle."""
    found = list(_impossible())
    if not found and not can_install():
        found += [f"the package {name}" for name in missing_packages()]
    return found


def _impossible() -> Iterator[str]:
    if sys.platform != "linux":
        yield "Linux"
    elif os.geteuid() != 0:
        yield "root, who may make network namespaces, mounts and control groups"
    else:
        if refused := _namespaces():
            yield f"namespaces with links and mounts of their own ({refused})"
        if lacking := _control_groups():
            yield lacking


def _namespaces() -> str:
    """Why a machine can't be made here; empty if it can, as far as can be told without the programs."""
    if not all(shutil.which(name, path=_path()) for name in ("unshare", "ip", "mount")):
        return ""
    command = ["unshare", *UNSHARE, "sh", "-ec", TRIAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _path()})
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["refused"])[-1]


def _control_groups() -> str:
    """What they lack here; empty if they do not."""
    found = cgroups.here()
    if lacking := cgroups.NEEDED - {name for one in found for name in one.controllers}:
        return f"control groups that can limit {', '.join(sorted(lacking))}"
    groups = cgroups.Groups(f"holdfast-trial-{os.getpid()}")
    try:
        groups.make()
    except OSError as failure:
        return f"control groups that can be written ({failure.strerror}: {failure.filename})"
    finally:
        cgroups.remove(groups.folders)
    return ""


def without_nodes(lacking: list[str]) -> str:
    return f"The tests on real nodes are not run: they need {'; '.join(lacking)}."


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def provide(out: TextIO, make: Callable[[], int] = build.build_all) -> int:
    """Make sure that all is there, as far as it can be here."""
    lacking = obstacles()
    if not lacking and (packages := missing_packages()):
        out.write(f"Installing for the tests, once: {', '.join(packages)}\n")
        out.flush()
        install(*packages)
        lacking = obstacles()  # more can be told now
    if lacking:
        out.write(f"{without_nodes(lacking)}\n")
        return 0
    provide_wheels(out)
    provide_criu(out)
    provide_login(out)
    return make()


def main() -> int:
    try:
        return provide(sys.stdout)
    except NotProvided as failure:
        sys.stderr.write(f"{failure}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
