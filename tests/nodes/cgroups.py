"""Control groups for a machine: children of the ones that this process is in, and nothing above or beside them."""

import os
import time
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")

# With version 2 processes are in leaves only; the machine's own are in this one.
LEAF = "init"
NEEDED = frozenset({"cpu", "memory", "pids"})
REMOVED_WITHIN_S = 60.0


class Hierarchy(NamedTuple):
    controllers: frozenset[str]  # none: version 2, or version 1 with a name instead
    unified: bool
    parent: Path  # where groups for machines are made


def hierarchies(mounts: str, membership: str) -> list[Hierarchy]:
    """From what the kernel says in /proc/self about mounts and control groups."""
    found = [_hierarchy(line, mounts) for line in membership.splitlines()]
    usable = [one for one in found if one is not None]
    if [one.unified for one in usable] == [True]:
        return [_only_unified(mounts)]
    return usable


def _hierarchy(line: str, mounts: str) -> Hierarchy | None:
    _, names, own = line.split(":", 2)
    controllers = frozenset(names.split(",")) if names else frozenset()
    for mount in mounts.splitlines():
        before, after = mount.split(" - ", 1)
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        fits = kind == "cgroup2" if not controllers else kind == "cgroup" and controllers <= set(options.split(","))
        if fits:
            return Hierarchy(controllers, not controllers, Path(point, os.path.relpath(own, root)).resolve())
    return None


def _only_unified(mounts: str) -> Hierarchy:
    """A group that has processes can't limit its children: with version 2 alone, machines go below the root."""
    point = next(mount.split()[4] for mount in mounts.splitlines() if " - cgroup2 " in mount)
    allowed = (Path(point) / "cgroup.subtree_control").read_text().split()
    return Hierarchy(frozenset(allowed), True, Path(point))


def here() -> list[Hierarchy]:
    return hierarchies(MOUNTS.read_text(), MEMBERSHIP.read_text())


class Groups:
    """One machine's groups, of the same name in every hierarchy."""

    def __init__(self, name: str) -> None:
        found = here()
        self.folders = [one.parent / name for one in found]
        self._leaf = LEAF if [one.unified for one in found] == [True] else ""

    @property
    def first(self) -> list[Path]:
        """What the machine's first process writes itself into."""
        return [folder / "cgroup.procs" for folder in self.folders]

    @property
    def later(self) -> list[Path]:
        """What its other processes write themselves into."""
        return [folder / self._leaf / "cgroup.procs" for folder in self.folders]

    def make(self) -> None:
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group of version 1, which then takes nobody
                if (folder / "cgroup.clone_children").exists() and (folder / setting).exists():
                    (folder / setting).write_text((folder.parent / setting).read_text())


def remove(folders: list[Path]) -> None:
    """Remove groups with all below them; processes that are still in them are killed."""
    deadline = time.monotonic() + REMOVED_WITHIN_S
    for folder in folders:
        while folder.exists() and not _removed(folder):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder} could not be removed: processes {processes([folder])} are still in it")
            time.sleep(0.05)


def processes(folders: list[Path]) -> set[int]:
    """All that run in these groups or below them."""
    found: set[int] = set()
    for folder in folders:
        for file in folder.rglob("cgroup.procs"):
            try:
                found.update(int(pid) for pid in file.read_text().split())
            except OSError:  # the group went meanwhile
                continue
    return found


def _removed(folder: Path) -> bool:
    for pid in processes([folder]):
        if pid:  # 0: a process that this one can't see
            _kill(pid)
    for path, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(path)  # noqa: PTH106 - the kernel's files in it are no obstacle
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
