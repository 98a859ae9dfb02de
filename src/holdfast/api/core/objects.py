"""Kubernetes' own kinds as far as holdfast reads them: decoding into these drops everything else.

What is written is plain JSON: a field that is only written costs no memory here. Lists that are written back as a whole
(conditions, taints) have every field, so that no field gets lost.
"""

from typing import Any, TypeAlias, TypeVar

from msgspec import UNSET, Struct, UnsetType, field

from holdfast.api.core.selectors import Affinity, Taint, Toleration, TopologySpreadConstraint
from holdfast.api.meta import ApiStruct, Key, Object

# Amounts as they are written, by resource.
Quantities: TypeAlias = dict[str, str | int | float]
JOB_TRACKING = "batch.kubernetes.io/job-tracking"


class JobCondition(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class JobSpec(ApiStruct, frozen=True, kw_only=True):
    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None


class UncountedTerminatedPods(ApiStruct, frozen=True, kw_only=True):
    """Pods that have ended and are not in the Job's counts yet."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobStatus(ApiStruct, frozen=True, kw_only=True):
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    uncounted_terminated_pods: UncountedTerminatedPods = UncountedTerminatedPods()
    start_time: str = ""
    completion_time: str = ""
    completed_indexes: str = ""
    failed_indexes: str = ""
    conditions: tuple[JobCondition, ...] = ()


class Job(Object, frozen=True, kw_only=True):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    def condition(self, kind: str) -> JobCondition | None:
        """The condition of that type, if it holds."""
        return next((c for c in self.status.conditions if c.type == kind and c.status == "True"), None)


class ServicePort(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    port: int
    target_port: int | str | None = None
    protocol: str = "TCP"


class ServiceSpec(ApiStruct, frozen=True, kw_only=True):
    type: str = "ClusterIP"
    external_name: str = ""
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = field(default="", name="clusterIP")
    publish_not_ready_addresses: bool = False


class Service(Object, frozen=True, kw_only=True):
    spec: ServiceSpec = ServiceSpec()


class ConfigMap(Object, frozen=True, kw_only=True):
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}

    @property
    def files(self) -> dict[str, bytes]:
        return {key: value.encode() for key, value in self.data.items()} | self.binary_data


class Secret(Object, frozen=True, kw_only=True):
    """Its content is never printed."""

    data: dict[str, bytes] = {}

    @property
    def files(self) -> dict[str, bytes]:
        return self.data

    def __repr__(self) -> str:
        return "Secret(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Used by Rich, also in tracebacks that show local variables."""
        return []


class ContainerStateTerminated(ApiStruct, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    """Of a container whose end nobody has seen it is null."""


class ContainerStateWaiting(ApiStruct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerState(ApiStruct, frozen=True, kw_only=True):
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(ApiStruct, frozen=True, kw_only=True):
    name: str
    image: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(ApiStruct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None
    observed_generation: int | UnsetType = UNSET


class NodeCondition(ApiStruct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


C = TypeVar("C", bound=PodCondition | NodeCondition)


def find_condition(conditions: tuple[C, ...], kind: str) -> C | None:
    """The condition of that type, whether it holds or not."""
    return next((each for each in conditions if each.type == kind), None)


def with_condition(conditions: tuple[C, ...], new: C) -> tuple[C, ...]:
    """The conditions, with `new` replacing the condition of the same type."""
    if find_condition(conditions, new.type) is None:
        return (*conditions, new)
    return tuple(new if each.type == new.type else each for each in conditions)


class ResourceRequirements(ApiStruct, frozen=True, kw_only=True):
    requests: Quantities = {}
    limits: Quantities = {}


class Container(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    restart_policy: str = ""
    resources: ResourceRequirements = ResourceRequirements()

    @property
    def is_sidecar(self) -> bool:
        """Only for init containers: a sidecar runs beside the main containers and ends after them."""
        return self.restart_policy == "Always"


class ClaimVolume(ApiStruct, frozen=True, kw_only=True):
    claim_name: str


class Volume(ApiStruct, frozen=True, kw_only=True):
    persistent_volume_claim: ClaimVolume | None = None


class SchedulingGate(ApiStruct, frozen=True, kw_only=True):
    name: str = ""


class PodSpec(ApiStruct, frozen=True, kw_only=True):
    """What a pod requests, and where it may run. What a kubelet needs besides is in its `RunnablePodSpec`."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    overhead: Quantities = {}
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    restart_policy: str = "Always"
    priority: int = 0
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    volumes: tuple[Volume, ...] = ()


class PodStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: str = ""
    pod_ip: str = field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of that type, if it holds."""
        return next((c for c in self.status.conditions if c.type == kind and c.status == "True"), None)

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    @property
    def claims(self) -> tuple[Key, ...]:
        """The PersistentVolumeClaims among the pod's volumes."""
        sources = (volume.persistent_volume_claim for volume in self.spec.volumes)
        return tuple(Key(self.metadata.namespace, source.claim_name) for source in sources if source)

    @property
    def is_tracked(self) -> bool:
        """Whether the Job controller's finalizer holds the pod until the pod is counted."""
        return JOB_TRACKING in self.metadata.finalizers


class NodeSpec(ApiStruct, frozen=True, kw_only=True):
    provider_id: str = field(name="providerID", default="")
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(ApiStruct, frozen=True, kw_only=True):
    type: str
    address: str


class DaemonEndpoint(ApiStruct, frozen=True, kw_only=True):
    port: int = field(name="Port", default=0)


class DaemonEndpoints(ApiStruct, frozen=True, kw_only=True):
    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeStatus(ApiStruct, frozen=True, kw_only=True):
    allocatable: Quantities = {}
    capacity: Quantities = {}
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    daemon_endpoints: DaemonEndpoints = DaemonEndpoints()


class Node(Object, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def internal_ip(self) -> str:
        """The first one; "" when the node tells none."""
        return next((each.address for each in self.status.addresses if each.type == "InternalIP"), "")


class PriorityClass(Object, frozen=True, kw_only=True):
    value: int = 0
    global_default: bool = False


class ServiceAccount(Object, frozen=True, kw_only=True):
    automount_service_account_token: bool | None = None


class PersistentVolumeClaimSpec(ApiStruct, frozen=True, kw_only=True):
    access_modes: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    selector: dict[str, Any] | None = None
    volume_mode: str = "Filesystem"
    volume_name: str = ""


class PersistentVolumeClaimStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str = "Pending"
    access_modes: tuple[str, ...] = ()
    capacity: Quantities = {}


class PersistentVolumeClaim(Object, frozen=True, kw_only=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class Deployment(Object, frozen=True, kw_only=True):
    """Nothing but its metadata is read."""


class CoreEvent(Object, frozen=True, kw_only=True):
    """An Event, as far as it tells why something waits."""

    type: str = "Normal"
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None


class LeaseSpec(ApiStruct, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Object, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()


class Namespace(Object, frozen=True, kw_only=True):
    """Nothing but its metadata is read."""
