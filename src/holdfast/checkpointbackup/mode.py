"""How a pod can be saved: by the container runtime or by its training; and what would be lost. Pure."""

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from holdfast.api.checkpointbackup import CheckpointBackupSpec, RunMode
from holdfast.api.core.objects import Container
from holdfast.api.meta import Object
from holdfast.api.scalars import InvalidQuantity, parse_quantity
from holdfast.errors import HoldfastError
from holdfast.pods.template import SIDECAR_CONTAINER

# Before the first run the freeze can only be guessed: from the memory, at a speed that most disks reach.
FREEZE_BYTES_PER_S = 256 * 2**20
SHORTEST_FREEZE_S = 5.0


# A pod as far as its mode depends on it. Only one pod is read like this, when its run begins: the cache has less.


class MountedVolume(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    name: str
    mount_path: str = ""
    read_only: bool = False


class BlockDevice(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """A claim of volumeMode Block in a container."""

    name: str
    device_path: str = ""


class LivenessProbe(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    period_seconds: int = 10
    failure_threshold: int = 3
    timeout_seconds: int = 1

    @property
    def tolerates_s(self) -> int:
        """The shortest silence after which the kubelet restarts the container."""
        return self.period_seconds * (self.failure_threshold - 1) + self.timeout_seconds


class BackedUpContainer(Container, frozen=True, kw_only=True):
    image: str = ""
    volume_mounts: tuple[MountedVolume, ...] = ()
    volume_devices: tuple[BlockDevice, ...] = ()
    liveness_probe: LivenessProbe | None = None


class EmptyDirSource(Struct, frozen=True, kw_only=True, gc=False):
    medium: str = ""


class ClaimSource(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    claim_name: str = ""
    read_only: bool = False


class ReadOnlySource(Struct, frozen=True, gc=False):
    """A source whose content does not matter: no container can write to it."""


class PodVolume(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """A volume and its source; without any of these sources it is of another kind, which can be written."""

    name: str
    empty_dir: EmptyDirSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    config_map: ReadOnlySource | None = None
    secret: ReadOnlySource | None = None
    projected: ReadOnlySource | None = None
    downward_api: ReadOnlySource | None = field(default=None, name="downwardAPI")
    image: ReadOnlySource | None = None

    @property
    def is_in_memory(self) -> bool:
        return self.empty_dir is not None and self.empty_dir.medium == "Memory"

    @property
    def is_read_only(self) -> bool:
        """What Kubernetes itself keeps containers from writing to."""
        sources = (self.config_map, self.secret, self.projected, self.downward_api, self.image)
        claim = self.persistent_volume_claim
        return any(source is not None for source in sources) or (claim is not None and claim.read_only)

    @property
    def source(self) -> str:
        if self.empty_dir is not None:
            return "in memory" if self.is_in_memory else "emptyDir"
        claim = self.persistent_volume_claim
        return f"claim {claim.claim_name}" if claim is not None else "a volume"


class BackedUpPodSpec(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    node_name: str = ""
    containers: tuple[BackedUpContainer, ...] = ()
    init_containers: tuple[BackedUpContainer, ...] = ()
    volumes: tuple[PodVolume, ...] = ()


class BackedUpContainerStatus(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    name: str
    image_id: str = field(default="", name="imageID")


class BackedUpPodStatus(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    container_statuses: tuple[BackedUpContainerStatus, ...] = ()


class BackedUpPod(Object, frozen=True, kw_only=True):
    spec: BackedUpPodSpec = BackedUpPodSpec()
    status: BackedUpPodStatus = BackedUpPodStatus()

    @property
    def has_sidecar(self) -> bool:
        everything = (*self.spec.containers, *self.spec.init_containers)
        return any(container.name == SIDECAR_CONTAINER for container in everything)

    @property
    def running_containers(self) -> tuple[BackedUpContainer, ...]:
        """All but our own that run beside each other: the containers first, then native sidecars."""
        sidecars = (container for container in self.spec.init_containers if container.is_sidecar)
        everything = (*self.spec.containers, *sidecars)
        return tuple(container for container in everything if container.name != SIDECAR_CONTAINER)


# The mode of a run.


class CannotSave(HoldfastError):
    """The pod can't be saved as the spec wishes; `reason` is one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ChosenMode(Struct, frozen=True, kw_only=True):
    mode: RunMode
    reason: str
    lost: str = ""
    """What a container checkpoint leaves out, if anything that is known."""


def choose_mode(spec: CheckpointBackupSpec, pod: BackedUpPod, *, runs_containers: bool = True) -> ChosenMode:
    """Raises `CannotSave`. runs_containers: False where pods are processes of one machine."""
    name = pod.metadata.name
    chosen = saved_containers(spec, pod)
    if spec.mode == "application" and not pod.has_sidecar:
        raise CannotSave(
            "NoSidecar",
            f"spec.mode is application, and pod {name} has no container {SIDECAR_CONTAINER}: run the training as a "
            "TrainingJob, or write spec.mode: container",
        )
    if spec.mode == "application":
        return ChosenMode(mode="application", reason="spec.mode is application")
    if not runs_containers and (spec.mode == "container" or not pod.has_sidecar):
        raise CannotSave(
            "NoContainers",
            f"on one machine no containers are run, so nothing can save the memory of pod {name}: have its training "
            "save by itself, as a TrainingJob with a checkpoint block, and leave spec.mode out",
        )
    lost = ", ".join(what_is_lost(pod, chosen))
    if spec.mode == "container":
        return ChosenMode(mode="container", reason="spec.mode is container", lost=lost)
    if pod.has_sidecar:
        return ChosenMode(mode="application", reason=f"auto: pod {name} has holdfast's sidecar, so its training saves")
    if lost:
        raise CannotSave(
            "WouldLoseFiles",
            f"a container checkpoint of pod {name} would lose {lost}: have the training save by itself (a TrainingJob "
            "with a checkpoint block), or write spec.mode: container to save the memory without these files",
        )
    return ChosenMode(
        mode="container", reason=f"auto: pod {name} has no sidecar of holdfast, and nothing that is known would be lost"
    )


def saved_containers(spec: CheckpointBackupSpec, pod: BackedUpPod) -> tuple[BackedUpContainer, ...]:
    """The containers that the spec lists; by default all but init containers and our own. Raises `CannotSave`."""
    if not spec.containers:
        return tuple(each for each in pod.spec.containers if each.name != SIDECAR_CONTAINER)
    there = {each.name: each for each in pod.running_containers}
    missing = [wanted.name for wanted in spec.containers if wanted.name not in there]
    if missing:
        raise CannotSave(
            "ContainerMissing",
            f"pod {pod.metadata.name} has no container {', '.join(missing)}: it has {', '.join(there) or 'none'}",
        )
    return tuple(there[wanted.name] for wanted in spec.containers)


def what_is_lost(pod: BackedUpPod, containers: Iterable[BackedUpContainer]) -> Iterator[str]:
    """The volumes whose content is not in a checkpoint of these containers."""
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    for container in containers:
        for mount in container.volume_mounts:
            volume = volumes.get(mount.name)
            if volume is None:
                continue
            if volume.is_in_memory or not (mount.read_only or volume.is_read_only):
                yield f"{mount.mount_path} of container {container.name} (volume {volume.name}, {volume.source})"
        for device in container.volume_devices:
            volume = volumes.get(device.name)
            if volume is not None and not volume.is_read_only:
                yield f"{device.device_path} of container {container.name} (volume {volume.name}, {volume.source})"


# The liveness probe: a frozen container answers none.


def probe_warnings(containers: Iterable[BackedUpContainer], last_freeze_s: float | None) -> Iterator[str]:
    """A sentence for each container whose probe fails before the freeze is over; it has both numbers."""
    for container in containers:
        probe = container.liveness_probe
        freeze_s = last_freeze_s if last_freeze_s is not None else estimated_freeze_s(container)
        if probe is None or probe.tolerates_s > freeze_s:
            continue
        known = "took" if last_freeze_s is not None else "may take, by an estimate from its memory,"
        yield (
            f"the liveness probe of container {container.name} fails after {probe.tolerates_s} s without an answer, "
            f"and the freeze {known} {freeze_s:.1f} s: the kubelet may restart the container meanwhile; raise the "
            "probe's failureThreshold or periodSeconds"
        )


def estimated_freeze_s(container: BackedUpContainer) -> float:
    resources = container.resources
    amount = resources.limits.get("memory") or resources.requests.get("memory") or 0
    try:
        return max(SHORTEST_FREEZE_S, float(parse_quantity(amount)) / FREEZE_BYTES_PER_S)
    except InvalidQuantity:
        return SHORTEST_FREEZE_S
