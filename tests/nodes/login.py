"""An SSH server and sudo for machines: Debian's, of this machine's own release, in the user's cache.

Nothing is installed: an SSH server that this machine does not have must not begin to listen here. The packages are
unpacked, and a machine lays them over its /usr and /etc. What this machine has already is not fetched.
"""

import fcntl
import hashlib
import platform
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

from tests.control_plane.build import cache_folder
from tests.frameworks.provision import APT_GET, can_install, run

PACKAGES = {"sshd": "openssh-server", "sudo": "sudo"}
WHERE = "/usr/sbin:/usr/bin:/sbin:/bin"
FAILED = "the SSH server of the machines was not fetched"


def missing_packages() -> list[str]:
    """What this machine lacks of them."""
    return sorted(package for name, package in PACKAGES.items() if shutil.which(name, path=WHERE) is None)


def login_tree() -> Path | None:
    """What is laid over a machine's files, or will be when it is fetched; None where all is there already."""
    if not (missing := missing_packages()):
        return None
    made_from = repr([missing, platform.machine(), platform.freedesktop_os_release().get("VERSION_CODENAME")])
    return cache_folder() / "login" / hashlib.sha256(made_from.encode()).hexdigest()[:16] / "tree"


def is_there() -> bool:
    return not missing_packages() or (can_install() and (tree := login_tree()) is not None and tree.exists())


def obstacle() -> str:
    """Why nobody can log in to machines here; empty if they can, or the packages can be fetched."""
    if is_there() or can_install():
        return ""
    return (
        f"The tests of machines that join are not run: they need {' and '.join(missing_packages())}, "
        "which `make nodes` fetches when root calls it on Debian."
    )


def provide_login(out: TextIO) -> None:
    if is_there():
        return
    if lacking := obstacle():
        out.write(f"{lacking}\n")
        return
    tree = login_tree()
    assert tree is not None
    out.write(f"Fetching {', '.join(missing_packages())} for the tests into {tree.parent}, once.\n")
    out.flush()
    tree.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent.parent) as partial:
        packages, unpacked = Path(partial, "packages"), Path(partial, "whole", "tree")
        _fetch(packages)
        unpacked.mkdir(parents=True)
        for package in sorted(packages.glob("archives/*.deb")):
            run(["dpkg-deb", "--extract", str(package), str(unpacked)], FAILED)
        _merge(unpacked)
        if not tree.parent.exists():  # another was quicker
            unpacked.parent.rename(tree.parent)


def _fetch(folder: Path) -> None:
    """With all that they need and this machine does not have."""
    (folder / "archives" / "partial").mkdir(parents=True)
    # The cache is in a home folder, where nobody else may write.
    apt = [*APT_GET, "-o", f"Dir::Cache={folder}", "-o", "APT::Sandbox::User=root"]
    with (cache_folder() / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run([*APT_GET, "update"], FAILED)
        run([*apt, "-y", "--no-install-recommends", "--download-only", "install", *missing_packages()], FAILED)


def _merge(tree: Path) -> None:
    """Debian's /bin, /sbin and /lib are links into /usr; packages of before that still name them."""
    for name in ("bin", "sbin", "lib", "lib64"):
        if (tree / name).is_dir():
            shutil.copytree(tree / name, tree / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(tree / name)
