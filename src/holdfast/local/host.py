"""This host: its data folder, which one `up` at a time may use, and its hardware, as the resources of a node."""

import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from holdfast.errors import HoldfastError

LOCK = "lock"


class DataDirInUse(HoldfastError):
    """Another process uses the data folder."""


class DataDirUnusable(HoldfastError):
    """The data folder can't be used."""


def default_folder(environment: Mapping[str, str]) -> Path:
    """$HOLDFAST_DATA, else holdfast in the XDG data folder of the user."""
    if chosen := environment.get("HOLDFAST_DATA"):
        return Path(chosen)
    home = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "holdfast"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder inside the block; the kernel releases the lock however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirUnusable(
            f"cannot use the data folder {folder}: {error.strerror}; choose another with --data"
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise DataDirInUse(
                f"holdfast is up already in {folder} (process {owner or 'unknown'}): use it, stop it, "
                "or choose another folder with --data"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


PODS = 1000
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")


class Hardware(Struct, frozen=True, kw_only=True):
    cpus: int
    memory_mib: int
    gpus: int

    @property
    def resources(self) -> dict[str, str]:
        """The capacity of the Node."""
        amounts = {"cpu": str(self.cpus), "memory": f"{self.memory_mib}Mi", "pods": str(PODS)}
        return {**amounts, "nvidia.com/gpu": str(self.gpus)} if self.gpus else amounts

    def __str__(self) -> str:
        return f"{self.cpus} CPUs, {self.memory_mib / 1024:.0f} GiB of memory, {self.gpus} GPUs"


def detect_hardware(gpus: int | None = None) -> Hardware:
    """Detect CPUs, memory and GPUs; `gpus` overrides the output of nvidia-smi."""
    return Hardware(
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=_memory_mib(),
        gpus=_count_gpus() if gpus is None else gpus,
    )


def _memory_mib() -> int:
    line = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(line.split()[1]) // 1024


def _count_gpus() -> int:
    """The number of GPUs: nvidia-smi prints one line per GPU; 0 without a driver."""
    try:
        # The command is fixed; its location is the user's PATH, as for every command of a job here.
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(done.stdout.split())
