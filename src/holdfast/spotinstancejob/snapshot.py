"""The observation of a SpotInstanceJob at one moment, as its decisions read it."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.machine_ends import is_ending, is_gone
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.meta import Condition
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.api.spotinstancejob_status import ReplicaStatus, SpotInstanceJobStatus
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.decisions import Snapshot
from holdfast.pods.failure import has_preemption_notice
from holdfast.scheduling.machine_pools import Resting, ZoneChoice
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.images import CheckpointImages
from holdfast.times import parse_duration_s, parse_time

# The phases in which an attempt has its Job, or is to have it.
STARTED = ("Starting", "Running")
# The phases in which an attempt still needs a node or an image.
PREPARING = ("Pending", "Provisioning", "Recovering")
# Most machines have become Nodes by then.
SLOW_MACHINE_S = 60.0
# How long Compute Engine leaves a spot machine that was not told earlier.
SHORTEST_NOTICE_S = 30.0


class RepositoryView(Struct, frozen=True, kw_only=True):
    """What the registry has said about the job's images; `problem` says why it has not."""

    asked_at: datetime
    checkpoints: tuple[CheckpointImages, ...] = ()
    """The whole ones, the newest first, with the labels of their images."""
    problem: str = ""


class SpotInstanceJobSnapshot(Snapshot, frozen=True, kw_only=True):
    job: SpotInstanceJob
    jobs: Mapping[str, Job] = {}
    """The Jobs of all attempts, by name."""
    pods: tuple[Pod, ...] = ()
    """The pods of these Jobs, and of Jobs that somebody else has deleted."""
    image_pods: Mapping[str, Pod] = {}
    """By name the pods that bring base images to the node of an attempt."""
    nodes: Mapping[str, Node] = {}
    """The nodes of replicas, pods and machines, as far as they exist."""
    machines: Mapping[str, ProvisionedInstance] = {}
    """What was ordered for this job, by name."""
    backups: Mapping[str, CheckpointBackup] = {}
    """The checkpoints of this job, by name."""
    template: SpotInstanceVM | None = None
    free_nodes: Mapping[int, str] = {}
    """By replica the node with room for it that was found, and is reserved for the moment."""
    zones: Mapping[int, ZoneChoice | Resting] = {}
    """By replica where its machine may be ordered."""
    unfit_template: str = ""
    """Why machines of the template would be of no use, so that none is ordered."""
    capacity_taken_by: Mapping[int, str] = {}
    """By replica why its machine, which is ready, has no room for it."""
    repository: RepositoryView | None = None
    """None while nobody has asked, or the answer is too old."""
    described: Mapping[str, CheckpointImages] = {}
    """The checkpoints that attempts are to go on from, by image as status names it, with the labels of their images."""
    undescribed: frozenset[str] = frozenset()
    """Images that attempts are to go on from, and of which the registry has not told anything yet."""
    missing_images: frozenset[str] = frozenset()
    """Images that attempts are to go on from, and that are not in the repository any more."""
    can_restore: bool = False
    """Whether a node says that its runtime creates containers from checkpoints."""
    pod_problems: Mapping[str, str] = {}
    """By name of a Job why its pod can't be made."""

    planned: SpotInstanceJobStatus | None = None
    """What has become of the replicas, before nodes, zones and images are looked for; None where nobody planned."""

    @property
    def status(self) -> SpotInstanceJobStatus:
        return self.job.status or SpotInstanceJobStatus()

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    def pod_of(self, job_name: str) -> Pod | None:
        """The pod of the Job of that name; of several the one that has not ended, or else the newest."""
        job = self.jobs.get(job_name)
        own = [pod for pod in self.pods if job is not None and is_owned_by(pod, job)]
        return max(own, key=lambda pod: (not pod.is_finished, pod.metadata.creation_timestamp), default=None)

    def machine_of(self, replica: ReplicaStatus) -> ProvisionedInstance | None:
        return self.machines.get(replica.machine) if replica.machine else None

    def machine_on(self, node: str) -> ProvisionedInstance | None:
        """The machine that is this node."""
        found = (each for each in self.machines.values() if node and machine_status(each).node_name == node)
        return next(found, None)

    def backup(self, replica: int, number: int) -> CheckpointBackup | None:
        return self.backups.get(names.backup_name(self.job.metadata.name, replica, number))

    def is_announced(self, node_name: str) -> bool:
        """Whether the node is about to be taken away, by its own marks or by the cloud's word."""
        node, machine = self.nodes.get(node_name), self.machine_on(node_name)
        return (node is not None and has_preemption_notice(node)) or (machine is not None and is_preempted(machine))

    def is_healthy(self, node_name: str) -> bool:
        """Whether a replica may be started there, or be saved as a survivor."""
        node, machine = self.nodes.get(node_name), self.machine_on(node_name)
        if node is None or not node.is_ready or self.is_announced(node_name):
            return False
        return machine is None or not is_ending(machine)


def is_owned_by(pod: Pod, job: Job) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def status_of(job: SpotInstanceJob) -> SpotInstanceJobStatus:
    return job.status or SpotInstanceJobStatus()


def with_job(observed: SpotInstanceJobSnapshot, job: SpotInstanceJob) -> SpotInstanceJobSnapshot:
    return structs.replace(observed, job=job)


def with_status(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> SpotInstanceJobSnapshot:
    return with_job(observed, structs.replace(observed.job, status=status))


def with_replica(status: SpotInstanceJobStatus, replica: ReplicaStatus) -> SpotInstanceJobStatus:
    """The status with this replica in the place of the one of its number."""
    replicas = (replica if each.replica == replica.replica else each for each in status.job_statuses)
    return structs.replace(status, job_statuses=tuple(replicas))


def replica_of(status: SpotInstanceJobStatus, number: int) -> ReplicaStatus | None:
    return next((each for each in status.job_statuses if each.replica == number), None)


def condition_of(status: SpotInstanceJobStatus, kind: str) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)


# A machine, as its own object tells.


def machine_condition(machine: ProvisionedInstance, kind: str) -> Condition | None:
    return next((each for each in machine_status(machine).conditions if each.type == kind), None)


def is_preempted(machine: ProvisionedInstance) -> bool:
    """It is taken back, or is about to be."""
    found = machine_condition(machine, "Preempted")
    return found is not None and found.status == "True"


def is_off(machine: ProvisionedInstance) -> bool:
    """The cloud says that nothing runs there any more."""
    return is_gone(machine) or machine_status(machine).state == "TERMINATED"


def is_ready(machine: ProvisionedInstance) -> bool:
    found = machine_condition(machine, "GPUReady")
    return found is not None and found.status == "True" and not is_ending(machine) and not is_preempted(machine)


def slow_from(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> datetime | None:
    """From when on people want to know what the machine of this attempt waits for; None where it is not waited for."""
    machine = observed.machine_of(replica)
    ordered = machine.metadata.creation_timestamp if machine is not None else ""
    if replica.phase not in PREPARING or replica.node_name is not None or not ordered:
        return None
    return after(ordered, SLOW_MACHINE_S)


# The part of the template that replicas go by.


def backoff_limit(job: SpotInstanceJob) -> int:
    """As Kubernetes has it for a Job."""
    limit = job.spec.job_template["spec"].get("backoffLimit")
    return 6 if limit is None else int(limit)


def active_deadline_s(job: SpotInstanceJob) -> int | None:
    seconds = job.spec.job_template["spec"].get("activeDeadlineSeconds")
    return None if seconds is None else int(seconds)


def notice_s(template: SpotInstanceVM | None) -> float:
    """How long before its end a machine is told."""
    written = template.spec.gcp.preemption_notice if template is not None else None
    return SHORTEST_NOTICE_S + parse_duration_s(written) if written else SHORTEST_NOTICE_S


# Times that are set for what nobody may wait for without an end.


class SpotInstanceJobTiming(Struct, frozen=True, kw_only=True):
    lost_node_s: float = 300.0
    """How long a node may be silent before its replica counts as lost, as Kubernetes evicts pods then.

    The cloud is asked long before, and its word counts at once.
    """
    lost_pod_timeout_s: float = 60.0
    """How long after its grace period a pod on a silent node still delays the next attempt."""
    bind_timeout_s: float = 120.0
    """How long a pod may be without its node before another node is looked for."""
    restore_timeout_s: float = 300.0
    """How long an image may refuse to be fetched before it counts as one that can't be restored."""
    recovery_checkpoint_s: int = 300
    """How long the checkpoint of a survivor may take: a machine boots and joins meanwhile."""
    checkpoint_s: int = 600
    """How long any other checkpoint may take."""
    saves_nothing_s: float = 60.0
    """After so long without a save, a program that has never saved is told what it has to do."""
    late_s: float = 30.0
    """How long after its deadline a checkpoint that nobody has ended is given up."""
    retry_s: float = 10.0
    """The pause before a second attempt after a quick failure, doubled for each further one."""
    retry_cap_s: float = 300.0
    stable_after_s: float = 600.0
    """An attempt that ran so long is not part of a row of failures."""
    explain_s: float = 10.0
    """After so long without a pod it is worth asking why there is none."""
    registry_retry_s: float = 15.0
    """When a registry that did not answer is asked again."""


TIMING = SpotInstanceJobTiming()


def after(moment: str, seconds: float) -> datetime:
    """So long after a time in status."""
    return parse_time(moment) + timedelta(seconds=seconds)
