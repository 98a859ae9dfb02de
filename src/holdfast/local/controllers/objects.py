"""The kinds that the built-in controllers read, with only the fields that they read.

Lists that a controller writes back as a whole (conditions, taints) have every field, so that no field gets lost.
"""

from typing import Any

from msgspec import UNSET, UnsetType

from holdfast.api.core import selectors
from holdfast.api.core.objects import JobStatus, Lease
from holdfast.api.core.selectors import NodeSpec, Quantities, Resources
from holdfast.api.meta import ApiStruct, Key, Object
from holdfast.cluster.protocol import JSON, Resource

TRACKING = "batch.kubernetes.io/job-tracking"


class Condition(ApiStruct, frozen=True, kw_only=True):
    """A condition of a pod or of a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None
    observed_generation: int | UnsetType = UNSET


class ClaimVolume(ApiStruct, frozen=True, kw_only=True):
    claim_name: str


class Volume(ApiStruct, frozen=True, kw_only=True):
    persistent_volume_claim: ClaimVolume | None = None


class PodSpec(selectors.PodSpec, frozen=True, kw_only=True):
    volumes: tuple[Volume, ...] = ()


class Terminated(ApiStruct, frozen=True, kw_only=True):
    exit_code: int = 0
    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True, kw_only=True):
    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


class PodStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def has_ended(self) -> bool:
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
        return TRACKING in self.metadata.finalizers


class NodeStatus(ApiStruct, frozen=True, kw_only=True):
    allocatable: Quantities = {}
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ClaimSpec(ApiStruct, frozen=True, kw_only=True):
    access_modes: tuple[str, ...] = ()
    resources: Resources = Resources()
    selector: JSON | None = None
    volume_mode: str = "Filesystem"
    volume_name: str = ""


class ClaimStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str = "Pending"
    access_modes: tuple[str, ...] = ()
    capacity: Quantities = {}


class Claim(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """A PersistentVolumeClaim."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class DeploymentSpec(ApiStruct, frozen=True, kw_only=True):
    replicas: int = 1
    template: JSON = {}


class DeploymentCondition(ApiStruct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class DeploymentStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: tuple[DeploymentCondition, ...] = ()


class Deployment(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ExitCodes(ApiStruct, frozen=True, kw_only=True):
    operator: str
    values: tuple[int, ...] = ()
    container_name: str = ""


class PodConditionPattern(ApiStruct, frozen=True, kw_only=True):
    type: str
    status: str = "True"


class FailureRule(ApiStruct, frozen=True, kw_only=True):
    action: str
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[PodConditionPattern, ...] = ()


class FailurePolicy(ApiStruct, frozen=True, kw_only=True):
    rules: tuple[FailureRule, ...] = ()


class SuccessRule(ApiStruct, frozen=True, kw_only=True):
    succeeded_indexes: str = ""
    succeeded_count: int | None = None


class SuccessPolicy(ApiStruct, frozen=True, kw_only=True):
    rules: tuple[SuccessRule, ...] = ()


class JobSpec(ApiStruct, frozen=True, kw_only=True):
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    backoff_limit: int = 6
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    pod_failure_policy: FailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    pod_replacement_policy: str = "TerminatingOrFailed"
    managed_by: str = ""
    template: JSON = {}


class Job(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def is_indexed(self) -> bool:
        return self.spec.completion_mode == "Indexed"

    @property
    def replaces_only_failed(self) -> bool:
        """Whether a terminating pod is replaced only after it has really ended."""
        return self.spec.pod_replacement_policy == "Failed" or self.spec.pod_failure_policy is not None

    @property
    def finished_at(self) -> str:
        """When the Job became Complete or Failed; empty before."""
        final = (c for c in self.status.conditions if c.type in ("Complete", "Failed") and c.status == "True")
        return next((condition.last_transition_time for condition in final), "")


PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=Pod)
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", model=Node, namespaced=False)
CLAIMS = Resource(group="", version="v1", kind="PersistentVolumeClaim", plural="persistentvolumeclaims", model=Claim)
DEPLOYMENTS = Resource(group="apps", version="v1", kind="Deployment", plural="deployments", model=Deployment)
JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", model=Job)
LEASES = Resource(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", model=Lease)


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((each for each in conditions if each.type == kind), None)


def with_condition(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """The conditions, with `new` replacing the condition of the same type."""
    if condition(conditions, new.type) is None:
        return (*conditions, new)
    return tuple(new if each.type == new.type else each for each in conditions)


def resource_version_precondition(obj: Object) -> dict[str, Any]:
    """The metadata that makes a patch apply only to the version that was read."""
    return {"resourceVersion": obj.metadata.resource_version}
