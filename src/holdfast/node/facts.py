"""What an image says about where it was made: the pod, the node's software, and its processor."""

import re
from pathlib import Path

from msgspec import Struct, structs

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.checkpoints.images.archive import CheckedArchive
from holdfast.checkpoints.images.image import ImageFacts
from holdfast.node.objects import AgentNode, SavedPod

ATTEMPT_LABEL = "holdfast.dev/attempt"
REPLICA_LABELS = ("holdfast.dev/replica", "batch.kubernetes.io/job-completion-index")
_VERSION = re.compile(r"\s(?=\d)")


class HostFacts(Struct, frozen=True, kw_only=True):
    """What the API server does not know of the node. boot_id: of the machine's start."""

    cpu_flags: tuple[str, ...] = ()
    cgroup_version: str = ""
    boot_id: str = ""


def read_host_facts(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> HostFacts:
    return HostFacts(
        cpu_flags=_cpu_flags(_text(proc / "cpuinfo")),
        cgroup_version="v2" if (cgroups / "cgroup.controllers").exists() else "v1",
        boot_id=_text(proc / "sys/kernel/random/boot_id").strip(),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    """Those that every processor has. x86 says flags, Arm says Features."""
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return tuple(sorted(set.intersection(*(set(line.split()) for line in lines)))) if lines else ()


def image_facts(
    backup: CheckpointBackup, pod: SavedPod, node: AgentNode, host: HostFacts, container: str, run: int
) -> ImageFacts:
    """All but the time and what the archive itself tells."""
    owner = backup.metadata.controller
    info, labels = node.status.node_info, pod.metadata.labels
    engine, _, engine_version = info.container_runtime_version.partition("://")
    distribution, *version = _VERSION.split(info.os_image, maxsplit=1)
    status, asked = pod.container_status(container), pod.container(container)
    attempt = labels.get(ATTEMPT_LABEL, "")
    return ImageFacts(
        mode="container",
        owner_uid=owner.uid if owner else backup.metadata.uid,
        owner_kind=owner.kind if owner else "CheckpointBackup",
        owner_name=owner.name if owner else backup.metadata.name,
        container=container,
        run=run,
        created="",
        replica=next((labels[name] for name in REPLICA_LABELS if labels.get(name)), ""),
        attempt=int(attempt) if attempt.isascii() and attempt.isdecimal() else None,
        pod_name=pod.metadata.name,
        pod_namespace=pod.metadata.namespace,
        pod_uid=pod.metadata.uid,
        base_image=_by_digest(status.image_id if status else ""),
        base_image_name=status.image if status else "",
        base_image_requested=asked.image if asked else "",
        engine={"cri-o": "CRI-O"}.get(engine, engine),
        engine_version=engine_version,
        kernel=info.kernel_version,
        cgroup_version=host.cgroup_version,
        distribution=distribution,
        distribution_version="".join(version),
        cpu_flags=host.cpu_flags,
        architecture=info.architecture,
        os=info.operating_system,
    )


def with_archive(facts: ImageFacts, archive: CheckedArchive) -> ImageFacts:
    """With what the runtime wrote beside the memory."""
    config = archive.config
    base = facts.base_image
    if "@" not in base and "@" in config.rootfs_image_ref:
        base = config.rootfs_image_ref
    return structs.replace(
        facts,
        base_image=base or config.rootfs_image_ref,
        base_image_name=config.rootfs_image_name or facts.base_image_name,
        runtime=config.runtime,
        criu_version=archive.criu_version,
    )


def _by_digest(image_id: str) -> str:
    """Without the scheme that old runtimes put before it."""
    return image_id.partition("://")[2] or image_id
