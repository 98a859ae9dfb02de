"""What a lab could leave behind on this host."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.nodes import cgroups
from tests.nodes.machine import program

# What a kubelet and a container runtime write outside any folder that they are given.
FILES = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods")
LIMITS = ("memory.limit_in_bytes", "memory.max", "cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "pids.max")
SETTINGS = ("net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")


def host() -> dict[str, object]:
    """What no lab may change: settings of the kernel, and of the control groups that this process is in."""
    settings = {name: Path("/proc/sys", name).read_text().strip() for name in SETTINGS}
    files = {
        name: sorted(path.name for path in Path(name).iterdir()) if Path(name).exists() else None for name in FILES
    }
    limits = {str(file): file.read_text() for one in cgroups.here() for file in _limits(one.parent)}
    return {**settings, **files, **limits}


def _limits(group: Path) -> list[Path]:
    return [file for name in LIMITS if (file := group / name).exists()]


def of(number: int, folder: Path) -> list[str]:
    """All that is there of the lab of this number in this folder."""
    return [*_files(folder), *_links(number), *_mounts(folder), *_groups(number), *_processes(folder)]


def _files(folder: Path) -> Iterator[str]:
    if folder.exists():
        yield f"folder {folder}"


def _links(number: int) -> Iterator[str]:
    listed = subprocess.run([program("ip"), "-brief", "link"], capture_output=True, text=True, check=True).stdout
    yield from (f"link {line}" for line in listed.splitlines() if line.split("@")[0].split()[0] == f"holdfast{number}")


def _mounts(folder: Path) -> Iterator[str]:
    yield from (f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line)


def _groups(number: int) -> Iterator[str]:
    for one in cgroups.here():
        yield from (f"control group {path}" for path in one.parent.glob(f"holdfast-lab-{number}-*"))


def _processes(folder: Path) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # it ended meanwhile
            continue
        if str(folder) in command:
            yield f"process {process.name}: {command}"
