"""Devices and limits of containers: cgroups for CPU and memory, where the kernel allows them, and GPUs.

Cgroups are created below the cgroup of holdfast itself, so that the limits of holdfast apply to its pods too.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from holdfast.api.scalars import parse_quantity, round_up
from holdfast.errors import HoldfastError
from holdfast.local.kubelet.objects import RunnableContainer, RunnablePodSpec

PERIOD_US = 100_000
CONTROLLERS = ("cpu", "memory")


class Cgroup(Struct, frozen=True):
    """The cgroups of one container: one with cgroup v2, one per controller with cgroup v1."""

    entries: tuple[Path, ...]

    @property
    def oom_killed(self) -> bool:
        """Whether the kernel OOM-killed a process of the container."""
        return any(count > 0 for count in self._oom_kills())

    def _oom_kills(self) -> Iterator[int]:
        for entry in self.entries:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    fields = dict(line.split() for line in (entry / name).read_text().splitlines())
                    yield int(fields.get("oom_kill", 0))

    def remove(self) -> None:
        for entry in self.entries:
            with contextlib.suppress(OSError):
                entry.rmdir()


class Cgroups(Struct, frozen=True, kw_only=True):
    """The parent cgroups of all pods on this node, by controller."""

    parents: dict[str, Path]
    is_unified: bool

    def make(self, uid: str, container: RunnableContainer) -> Cgroup | None:
        """Create the cgroup of a container; None for a container without enforceable limits."""
        entries = {}
        for controller, settings in self._settings(container).items():
            entry = self.parents[controller] / f"{uid}-{container.name}"
            entry.mkdir(exist_ok=True)
            for name, value in settings.items():
                (entry / name).write_text(value)
            entries[entry] = True
        return Cgroup(tuple(entries)) if entries else None

    def _settings(self, container: RunnableContainer) -> dict[str, dict[str, str]]:
        limits, settings = container.resources.limits, {}
        if "cpu" in limits and "cpu" in self.parents:
            quota = max(round_up(parse_quantity(limits["cpu"]) * PERIOD_US), 1000)
            settings["cpu"] = (
                {"cpu.max": f"{quota} {PERIOD_US}"}
                if self.is_unified
                else {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
            )
        if "memory" in limits and "memory" in self.parents:
            limit = round_up(parse_quantity(limits["memory"]))
            settings["memory"] = {"memory.max" if self.is_unified else "memory.limit_in_bytes": str(limit)}
        return settings

    def remove(self) -> None:
        """Remove the cgroups of earlier runs and of this run."""
        for parent in self.parents.values():
            with contextlib.suppress(OSError):
                Cgroup(tuple(entry for entry in parent.iterdir() if entry.is_dir())).remove()
                parent.rmdir()


def find(identity: str, proc: Path = Path("/proc/self")) -> Cgroups | None:
    """Create a cgroup below the cgroup of this process; None without permission: then no limit is enforced."""
    memberships = {
        controller: path
        for line in (proc / "cgroup").read_text().splitlines()
        for _, names, path in [line.split(":", 2)]
        for controller in names.split(",")
    }
    parents: dict[str, Path] = {}
    for line in (proc / "mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        mount, kind, options = fields.split()[4], source.split()[0], source.split()[2].split(",")
        if kind == "cgroup":
            parents |= _v1(Path(mount), options, memberships, identity)
        elif kind == "cgroup2" and (unified := _v2(Path(mount) / memberships.get("", "/").lstrip("/"), identity)):
            return Cgroups(parents=dict.fromkeys(CONTROLLERS, unified), is_unified=True)
    return Cgroups(parents=parents, is_unified=False) if parents else None


def _v1(mount: Path, options: list[str], memberships: dict[str, str], identity: str) -> dict[str, Path]:
    found = {}
    for controller in CONTROLLERS:
        if controller in options and controller in memberships:
            folder = mount / memberships[controller].lstrip("/") / f"holdfast-{identity}"
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                found[controller] = folder
    return found


def _v2(cgroup: Path, identity: str) -> Path | None:
    """Child cgroups get a controller only if the parent delegates it, and only if no process is in the parent."""
    folder = cgroup / f"holdfast-{identity}"
    try:
        if not set(CONTROLLERS) <= set((cgroup / "cgroup.controllers").read_text().split()):
            return None
        folder.mkdir(exist_ok=True)
        for parent in (cgroup, folder):
            for controller in CONTROLLERS:
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return folder


# Assignment of the GPUs of this node to containers: each GPU belongs to one pod at a time.

RESOURCE = "nvidia.com/gpu"


class NotEnoughGpus(HoldfastError):
    """Fewer GPUs are free than the pod requests."""


class GpuAllocator:
    def __init__(self, count: int) -> None:
        self._free = set(range(count))
        self._allocated: dict[str, tuple[int, ...]] = {}

    def take(self, pod: str, spec: RunnablePodSpec) -> dict[str, tuple[int, ...]]:
        """Allocate the GPUs of a pod; returns the device indexes by container name."""
        needed = needed_by(spec)
        if needed > len(self._free):
            raise NotEnoughGpus(f"the pod asks for {needed} {RESOURCE}, and {len(self._free)} are free on this machine")
        devices = tuple(sorted(self._free)[:needed])
        self._free.difference_update(devices)
        self._allocated[pod] = devices
        return assign_devices(spec, devices)

    def release(self, pod: str) -> None:
        self._free.update(self._allocated.pop(pod, ()))


def needed_by(spec: RunnablePodSpec) -> int:
    """The peak number of GPUs: concurrent containers add up; an init container runs only beside earlier sidecars."""
    sidecars = peak = 0
    for container in spec.init_containers:
        if container.is_sidecar:
            sidecars += requested_gpus(container)
        else:
            peak = max(peak, sidecars + requested_gpus(container))
    return max(peak, sidecars + sum(map(requested_gpus, spec.containers)))


def assign_devices(spec: RunnablePodSpec, devices: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    shares: dict[str, tuple[int, ...]] = {}
    used = 0
    for container in (*spec.init_containers, *spec.containers):
        shares[container.name] = devices[used : used + requested_gpus(container)]
        if container.is_sidecar or container in spec.containers:
            used += requested_gpus(container)
    return shares


def requested_gpus(container: RunnableContainer) -> int:
    resources = container.resources
    return round_up(parse_quantity(resources.limits.get(RESOURCE) or resources.requests.get(RESOURCE) or 0))


def cuda_env(devices: Iterable[int]) -> dict[str, str]:
    """The variables that CUDA and the container runtimes read; an empty list hides every device."""
    text = ",".join(map(str, devices))
    return {"CUDA_VISIBLE_DEVICES": text, "NVIDIA_VISIBLE_DEVICES": text or "void"}
