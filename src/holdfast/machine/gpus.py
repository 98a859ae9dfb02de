"""Which GPU of this machine belongs to which container: each to one at a time."""

from collections.abc import Iterable

from holdfast.api.quantities import parse_quantity, round_up
from holdfast.errors import HoldfastError
from holdfast.machine.objects import Container, PodSpec

RESOURCE = "nvidia.com/gpu"


class NotEnoughGpus(HoldfastError):
    """Fewer are free than the pod asks for."""


class Gpus:
    def __init__(self, count: int) -> None:
        self._free = set(range(count))
        self._taken: dict[str, tuple[int, ...]] = {}

    def take(self, pod: str, spec: PodSpec) -> dict[str, tuple[int, ...]]:
        """The devices of each container, by its name."""
        needed = needed_by(spec)
        if needed > len(self._free):
            raise NotEnoughGpus(f"the pod asks for {needed} {RESOURCE}, and {len(self._free)} are free on this machine")
        devices = tuple(sorted(self._free)[:needed])
        self._free.difference_update(devices)
        self._taken[pod] = devices
        return assign_devices(spec, devices)

    def release(self, pod: str) -> None:
        self._free.update(self._taken.pop(pod, ()))


def needed_by(spec: PodSpec) -> int:
    """What runs side by side adds up; an init container runs beside the sidecars before it and nothing else."""
    sidecars = peak = 0
    for container in spec.init_containers:
        if container.is_sidecar:
            sidecars += requested_gpus(container)
        else:
            peak = max(peak, sidecars + requested_gpus(container))
    return max(peak, sidecars + sum(map(requested_gpus, spec.containers)))


def assign_devices(spec: PodSpec, devices: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    shares: dict[str, tuple[int, ...]] = {}
    used = 0
    for container in (*spec.init_containers, *spec.containers):
        shares[container.name] = devices[used : used + requested_gpus(container)]
        if container.is_sidecar or container in spec.containers:
            used += requested_gpus(container)
    return shares


def requested_gpus(container: Container) -> int:
    resources = container.resources
    return round_up(parse_quantity(resources.limits.get(RESOURCE) or resources.requests.get(RESOURCE) or 0))


def cuda_env(devices: Iterable[int]) -> dict[str, str]:
    """What CUDA and the container runtimes go by; an empty list hides every device."""
    text = ",".join(map(str, devices))
    return {"CUDA_VISIBLE_DEVICES": text, "NVIDIA_VISIBLE_DEVICES": text or "void"}
