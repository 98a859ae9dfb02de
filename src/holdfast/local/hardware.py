"""What this machine has to offer as a node."""

import os
import subprocess
from pathlib import Path

from msgspec import Struct

PODS = 1000
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")


class Hardware(Struct, frozen=True, kw_only=True):
    cpus: int
    memory_mib: int
    gpus: int

    @property
    def resources(self) -> dict[str, str]:
        """As a Node's capacity says it."""
        amounts = {"cpu": str(self.cpus), "memory": f"{self.memory_mib}Mi", "pods": str(PODS)}
        return {**amounts, "nvidia.com/gpu": str(self.gpus)} if self.gpus else amounts

    def __str__(self) -> str:
        return f"{self.cpus} CPUs, {self.memory_mib / 1024:.0f} GiB of memory, {self.gpus} GPUs"


def detect_hardware(gpus: int | None = None) -> Hardware:
    """Count what is there; `gpus` overrides what nvidia-smi says."""
    return Hardware(
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=_memory_mib(),
        gpus=_count_gpus() if gpus is None else gpus,
    )


def _memory_mib() -> int:
    line = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(line.split()[1]) // 1024


def _count_gpus() -> int:
    """One line for each GPU; none where there is no driver."""
    try:
        # The command is fixed; where it is found is the user's PATH, as everything that jobs run here.
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(done.stdout.split())
