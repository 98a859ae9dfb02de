"""Provides the frameworks that the tests join workers through.

JAX and TensorFlow come into the user's cache, PyTorch from Debian:

    python -m tests.frameworks.provision

Nothing is installed twice. A folder in the cache is named for its requirement file and for the interpreter that it is
for.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.control_plane.build import cache_folder

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
TENSORBOARD_REQUIREMENTS = Path(__file__).with_name("tensorboard.txt")
TENSORFLOW_REQUIREMENTS = Path(__file__).with_name("tensorflow.txt")
INSTALLED = ".installed"

TORCH_PACKAGE = "python3-torch"
TORCH_PYTHON = Path("/usr/bin/python3")
# Another apt-get may be at work; it is waited for.
APT_GET = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=600")


class NotProvided(Exception):
    """A framework could not be installed; the text says why and what to do."""


def jax_folder(requirements: Path = REQUIREMENTS) -> Path:
    """Where the environment with JAX is, or will be; with other requirements, the one with those."""
    interpreter = repr([sys.platform, platform.machine(), sys.version_info[:2]])
    digest = hashlib.sha256(interpreter.encode() + requirements.read_bytes())
    return cache_folder() / "frameworks" / digest.hexdigest()[:16]


def python_in(folder: Path) -> Path | None:
    """The environment's interpreter; None unless all was installed and what it links to is still there."""
    python = folder / "bin" / "python"
    return python if (folder / INSTALLED).exists() and python.exists() else None


def tensorflow_folder() -> Path:
    return jax_folder(TENSORFLOW_REQUIREMENTS)


def provide_jax(out: TextIO, requirements: Path = REQUIREMENTS) -> Path:
    """Make sure that JAX is there, and return its interpreter."""
    return _provide("JAX", 150, out, requirements)


def provide_tensorflow(out: TextIO) -> Path:
    return _provide("TensorFlow", 350, out, TENSORFLOW_REQUIREMENTS)


def tensorboard_folder() -> Path:
    return jax_folder(TENSORBOARD_REQUIREMENTS)


def provide_tensorboard(out: TextIO) -> Path:
    return _provide("TensorBoard", 40, out, TENSORBOARD_REQUIREMENTS)


def _provide(framework: str, size_mb: int, out: TextIO, requirements: Path) -> Path:
    folder = jax_folder(requirements)
    with _alone(folder.parent, framework, out):
        if python_in(folder) is None:
            _say(out, f"Installing {framework} for the tests into {folder}: {size_mb} MB to fetch, once.")
            _install(framework, folder, requirements)
    python = python_in(folder)
    assert python, f"{folder} was made just now"
    _say(out, f"{framework} is there: {folder}")
    return python


def _install(framework: str, folder: Path, requirements: Path) -> None:
    venv.create(folder, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input")
    install = [*pip, "install", "--quiet", "--require-hashes", "--requirement", str(requirements)]
    run(install, f"{framework} was not installed")
    (folder / INSTALLED).touch()


def provide_torch(out: TextIO) -> None:
    """Install Debian's PyTorch where that is possible, and say so where it is not."""
    if torch_is_there():
        _say(out, f"PyTorch is there: {TORCH_PACKAGE}")
    elif torch_can_be_installed():
        _say(out, f"Installing {TORCH_PACKAGE} for the tests, once.")
        install_torch()
    else:
        _say(out, without_torch())


def torch_is_there(python: Path = TORCH_PYTHON) -> bool:
    """Whether Debian's interpreter finds it; it is not imported, which takes seconds."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return python.exists() and subprocess.run([python, "-c", look], check=False).returncode == 0


def torch_can_be_installed() -> bool:
    return can_install()


def install_torch() -> None:
    install(TORCH_PACKAGE)


def can_install() -> bool:
    """Whether Debian's packages can be had here."""
    return os.geteuid() == 0 and _distribution() == "debian" and shutil.which("apt-get") is not None


def install(*packages: str) -> None:
    failed = f"{', '.join(packages)} was not installed"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    cache_folder().mkdir(parents=True, exist_ok=True)
    # `apt-get update` waits for no other one.
    with (cache_folder() / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run([*APT_GET, "update"], failed, environment)
        run([*APT_GET, "install", "-y", "--no-install-recommends", *packages], failed, environment)


def without_torch() -> str:
    return (
        f"The PyTorch tests are not run: they need Debian's package {TORCH_PACKAGE}, "
        "which `make frameworks` installs when root calls it on Debian."
    )


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["ID"]
    except OSError:
        return ""


def run(command: Sequence[str], failed: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.decode(errors="replace").strip().splitlines()[-10:])
        raise NotProvided(f"{failed}; `{' '.join(command)}` said last:\n{last}")


@contextmanager
def _alone(folder: Path, framework: str, out: TextIO) -> Iterator[None]:
    """One installation at a time; the lock goes with the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(out, f"Waiting for another installation to end, before that of {framework}.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(out: TextIO, text: str) -> None:
    out.write(f"{text}\n")
    out.flush()


def main() -> int:
    try:
        provide_jax(sys.stdout)
        provide_tensorflow(sys.stdout)
        provide_tensorboard(sys.stdout)
        provide_torch(sys.stdout)
    except NotProvided as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted; run it again to go on.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
