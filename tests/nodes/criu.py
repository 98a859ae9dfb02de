"""CRIU for real nodes: Debian sid's, with its own libc and loader, in the user's cache. Nothing is installed.

Debian's stable release has a CRIU that is too old for new kernels. sid moves on, so that no version is pinned but the
oldest that will do; apt checks the signatures of what it fetches.
"""

import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TextIO

from tests.control_plane.build import cache_folder
from tests.frameworks.provision import APT_GET, NotProvided, can_install, install, run

OLDEST = (4, 2)
SUITE = "sid"
LIMITS = Path(__file__).with_name("limits.c")
SYS_RESOURCE = 24  # the number of the capability


def criu_program() -> Path:
    """Where CRIU is, or will be; its folder goes into the PATH of container runtimes."""
    made_from = repr([OLDEST, SUITE, platform.machine(), lacks_limits()]).encode() + LIMITS.read_bytes()
    return cache_folder() / "criu" / hashlib.sha256(made_from).hexdigest()[:16] / "bin" / "criu"


def lacks_limits(status: Path = Path("/proc/self/status")) -> bool:
    """Whether root may not read the limits of other users' processes here, which CRIU must: see limits.c."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    return found is not None and not int(found[1], 16) >> SYS_RESOURCE & 1


def obstacle() -> str:
    """Why there can be no CRIU here; empty if it is there, or can be fetched."""
    if criu_program().exists() or can_install():
        return ""
    oldest = ".".join(map(str, OLDEST))
    return (
        f"The tests of container checkpoints are not run: they need CRIU {oldest} or newer, "
        "which `make nodes` fetches when root calls it on Debian."
    )


def provide_criu(out: TextIO) -> None:
    """Fetch CRIU with all that it is linked with, unless it is there or can't be had."""
    program = criu_program()
    if program.exists():
        return
    if missing := obstacle():
        out.write(f"{missing}\n")
        return
    folder = program.parents[1]
    out.write(f"Fetching CRIU for the tests into {folder}, once.\n")
    out.flush()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        packages = Path(partial, "packages")
        _fetch(packages, _mirror())
        whole = Path(partial, "whole")
        whole.mkdir()
        for package in sorted((packages / "cache" / "archives").glob("*.deb")):
            run(["dpkg-deb", "--extract", str(package), str(whole / "tree")], "CRIU was not unpacked")
        if lacks_limits():
            _compile_limits(whole / "limits.so")
        write_starter(whole)
        check_version(whole / "bin" / "criu")
        if not folder.exists():  # another was quicker
            whole.rename(folder)


def _mirror() -> str:
    """Where this machine has Debian's packages from."""
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {codename}", "Component: main"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if not said:
        raise NotProvided(f"CRIU was not fetched: apt knows no package source for {codename}; run `apt-get update`")
    return said[0]


def _fetch(folder: Path, mirror: str) -> None:
    """With lists, caches and a status of its own: for apt it is a machine on which nothing is installed."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb {mirror} {SUITE} main\n")
    (folder / "status").touch()
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Dir::State::status": folder / "status",
        "APT::Sandbox::User": "root",  # the cache is in a home folder, where nobody else may write
    }
    apt = [*APT_GET, *(part for key, value in settings.items() for part in ("-o", f"{key}={value}"))]
    failed = "CRIU was not fetched"
    run([*apt, "update"], failed)
    run([*apt, "-y", "--no-install-recommends", "--download-only", "install", "criu"], failed)


def _compile_limits(library: Path) -> None:
    if shutil.which("cc") is None:
        install("gcc", "libc6-dev")
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(LIMITS)]
    run(command, "CRIU can't be used")


def write_starter(folder: Path) -> None:
    """A script beside the unpacked tree that starts its CRIU by its own loader, wherever the folder is moved."""
    tree = folder / "tree"
    loaders = [path for path in sorted(tree.glob("usr/lib*/**/ld-linux*.so.*")) if not path.is_symlink()]
    libraries = [path for path in sorted(tree.glob("usr/lib/*-linux-gnu*")) if path.is_dir()]
    if not loaders or not libraries:
        raise NotProvided(f"CRIU was not unpacked: its packages bring no loader or no libraries into {tree}")
    loader, library = (path[0].relative_to(folder) for path in (loaders, libraries))
    program = folder / "bin" / "criu"
    program.parent.mkdir()
    preload = ' --preload "$here/limits.so"' if (folder / "limits.so").exists() else ""
    start = f'exec "$here/{loader}"{preload} --library-path "$here/{library}" "$here/tree/usr/sbin/criu" "$@"'
    program.write_text(f"#!/bin/sh\nhere=${{0%/bin/criu}}\n{start}\n")
    program.chmod(0o755)


def check_version(program: Path) -> None:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"Version: (\d+)\.(\d+)", done.stdout)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        said = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        oldest = ".".join(map(str, OLDEST))
        raise NotProvided(f"Debian {SUITE} has no CRIU {oldest} or newer that runs here; `criu --version` said: {said}")
