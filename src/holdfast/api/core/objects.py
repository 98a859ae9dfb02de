"""Kubernetes' own kinds as far as holdfast reads them: decoding into these drops everything else.

What is written is plain JSON (workloads/): a field that we set once and never look at again costs no memory here.
"""

from msgspec import Struct, field

from holdfast.api.core.selectors import NodeSpec, PodResources, Quantities
from holdfast.api.meta import Object


class JobCondition(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None


class UncountedTerminatedPods(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Pods that have ended and are not in the Job's counts yet."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
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


class Job(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    def condition(self, kind: str) -> JobCondition | None:
        """The condition of that type, if it holds."""
        return next((c for c in self.status.conditions if c.type == kind and c.status == "True"), None)


class ServicePort(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    name: str = ""
    port: int
    target_port: int | str | None = None
    protocol: str = "TCP"


class ServiceSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = field(default="", name="clusterIP")
    publish_not_ready_addresses: bool = False


class Service(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: ServiceSpec = ServiceSpec()


class ConfigMap(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    data: dict[str, str] = {}


class ContainerStateTerminated(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    """Of a container whose end nobody has seen it is null."""


class ContainerStateWaiting(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    name: str
    image: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodSpec(PodResources, frozen=True, kw_only=True):
    node_name: str = ""


class PodStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
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


class NodeStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    allocatable: Quantities = {}
    capacity: Quantities = {}
    conditions: tuple[PodCondition, ...] = ()


class Node(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


class PriorityClass(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    value: int = 0
    global_default: bool = False


class ServiceAccount(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    automount_service_account_token: bool | None = None


class PersistentVolumeClaimStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    phase: str = "Pending"


class PersistentVolumeClaim(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """A PersistentVolumeClaim."""

    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class Deployment(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Nothing but its metadata is read."""


class CoreEvent(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """An Event, as far as it tells why something waits."""

    type: str = "Normal"
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None


class LeaseSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: LeaseSpec = LeaseSpec()


class Namespace(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Nothing but its metadata is read."""
