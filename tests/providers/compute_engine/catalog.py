"""Zones, machine types and GPUs of the double: a small part of Google's."""

from collections.abc import Mapping
from typing import NamedTuple

ZONES: Mapping[str, tuple[str, ...]] = {
    "us-central1": ("a", "b", "c", "f"),
    "us-east1": ("b", "c", "d"),
    "europe-west4": ("a", "b", "c"),
}
# Anybody may use the images of these projects.
PUBLIC_IMAGES = frozenset(("cos-cloud", "debian-cloud", "ubuntu-os-cloud"))


class Type(NamedTuple):
    """accelerator, accelerators: GPUs that it brings. takes_gpus: others can be attached."""

    cpus: int
    memory_mb: int
    accelerator: str = ""
    accelerators: int = 0
    takes_gpus: bool = False


MACHINE_TYPES: Mapping[str, Type] = {
    "n1-standard-4": Type(4, 15360, takes_gpus=True),
    "n1-standard-8": Type(8, 30720, takes_gpus=True),
    "n2-standard-4": Type(4, 16384),
    "e2-standard-4": Type(4, 16384),
    "g2-standard-4": Type(4, 16384, "nvidia-l4", 1),
    "g2-standard-24": Type(24, 98304, "nvidia-l4", 2),
    "a2-highgpu-1g": Type(12, 87040, "nvidia-tesla-a100", 1),
}
# GPUs that are attached, with the zones that have them; the others everywhere.
ACCELERATORS: Mapping[str, frozenset[str] | None] = {
    "nvidia-tesla-t4": None,
    "nvidia-tesla-v100": frozenset(("us-central1-a", "us-central1-b", "europe-west4-a")),
    "nvidia-tesla-p4": frozenset(("us-central1-a",)),
    "nvidia-l4": None,
    "nvidia-tesla-a100": None,
}
DISK_TYPES = frozenset(("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"))


def zone_names() -> tuple[str, ...]:
    return tuple(sorted(f"{region}-{letter}" for region, letters in ZONES.items() for letter in letters))


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def gpu_quota(accelerator: str, *, spot: bool) -> str:
    """The name of the quota of a region for such GPUs."""
    name = accelerator.replace("nvidia-tesla-", "nvidia-").replace("-", "_").upper()
    return f"{'PREEMPTIBLE_' if spot else ''}{name}_GPUS"


GLOBAL_GPUS = "GPUS_ALL_REGIONS"
