"""A snapshot of a TrainingJob and its cluster objects, as input for `decide`."""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.reports import WorkerReport
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.decisions import Snapshot
from holdfast.pods.failure import WorkerFailure
from holdfast.scheduling.gang import AdmissionDecision

FINISHED_STATES = ("Completed", "Failed")
SPEC_CHANGED = "SpecChanged"


def restart_reason(status: TrainingJobStatus) -> str:
    """The reason of the Restarting condition, which is true until the job runs again; "" when it is not restarting."""
    true = (each for each in status.conditions if each.type == "Restarting" and each.status == "True")
    return next((each.reason for each in true), "")


class PendingReport(Struct, frozen=True):
    """A worker's report that is not in the stored status yet."""

    batch: WorkerReport
    received: datetime


class TrainingJobSnapshot(Snapshot, frozen=True, kw_only=True):
    job: TrainingJob
    """With the workers' reports in its status."""
    reports: tuple[PendingReport, ...] = ()
    """The reports that only this snapshot has in its status."""
    status_without_reports: TrainingJobStatus | None = None
    """The status without these reports, while their write is not due; None when it is."""
    current_job: Job | None = None
    """The Job of the current attempt."""
    old_jobs: tuple[Job, ...] = ()
    """Jobs of earlier attempts that still exist."""
    pods: tuple[Pod, ...] = ()
    """The workers of the current attempt."""
    old_pods: tuple[Pod, ...] = ()
    """Workers of other attempts, and of an earlier job of this name."""
    nodes: Mapping[str, Node] = {}
    """The nodes of all these pods, by name, as far as they exist."""
    admission: AdmissionDecision | None = None
    """Whether all workers fit; None before the first scheduling pass."""
    gpus_per_worker: int = 0
    claim: str = ""
    """The PersistentVolumeClaim that stores the workers' checkpoints, if any."""
    spec_changed: bool = False
    """The current attempt was created for another spec than the present one."""
    queued: bool = False
    """Kueue decides when the attempt starts."""
    min_workers: int = 0
    """Workers with which an elastic launcher continues; the attempt replaces failed workers. 0: all are needed."""
    liveness_failure: WorkerFailure | None = None
    """A failure that follows from the workers' reports, or from missing reports."""
    lost_pods: frozenset[str] = frozenset()
    """Pods, by uid, that are lost with their nodes before Kubernetes has noticed."""
    saving_pods: frozenset[str] = frozenset()
    """Pods, by uid, that are terminating and were requested to save a checkpoint first."""
    avoids_wrong_nodes: bool = False
    """The attempt has not started, and was created to avoid other nodes than those that are lost now."""
    pod_events: Mapping[str, str] = {}
    """Messages of events about pods whose status shows no problem, by the pod's uid."""
    job_event: str = ""
    """The message of the event about pods that can't be created."""
    store_in_use: str = ""
    """A message that names the earlier, unfinished job that stores its checkpoints under the same path."""

    @property
    def status(self) -> TrainingJobStatus:
        return self.job.status or TrainingJobStatus()

    @property
    def state(self) -> str:
        return str(self.status.state or "")

    @property
    def elastic(self) -> bool:
        return self.min_workers > 0

    @property
    def finished(self) -> bool:
        return self.state in FINISHED_STATES

    @property
    def restart_reason(self) -> str:
        return restart_reason(self.status)

    @property
    def started(self) -> bool:
        """The Job of the current attempt is not suspended."""
        job = self.current_job
        return job is not None and not job.spec.suspend and not job.metadata.deletion_timestamp

    @property
    def running_old_pods(self) -> tuple[Pod, ...]:
        """Workers of other attempts that have not ended."""
        return tuple(pod for pod in self.old_pods if not pod.is_finished)

    @property
    def bound(self) -> tuple[Pod, ...]:
        """Workers that are bound to a node and have not ended."""
        return tuple(pod for pod in self.pods if pod.spec.node_name and not pod.is_finished)

    @property
    def succeeded(self) -> bool:
        return self.current_job is not None and self.current_job.condition("Complete") is not None


# Timeouts after which the operator acts; each is a flag of the operator.


class TrainingJobTiming(Struct, frozen=True, kw_only=True):
    retry_s: float = 10.0
    """The delay before the second restart in a row; doubled for each further one. The first restart has no delay."""
    retry_cap_s: float = 300.0
    stable_after_s: float = 600.0
    """An attempt that ran this long ends a row of quick restarts."""
    restart_grace_s: int = 5
    """The grace period of the remaining workers of a failed gang: without the others they have nothing to save."""
    restart_upload_grace_s: int = 30
    """The same where the upload of a complete checkpoint to an object store may still be under way."""
    lost_pod_timeout_s: float = 60.0
    """How long after its grace period a pod on an unreachable node still blocks the next attempt."""
    starvation_timeout_s: float = 600.0
    """How long smaller jobs may overtake a job that does not fit."""
    reservations_per_namespace: int = 1
    """How many jobs of a namespace that have waited longer get their missing capacity reserved at a time."""
    bind_timeout_s: float = 600.0
    """How long an admitted gang may take to bind all its pods before it releases its capacity."""
    report_timeout_s: float = 15.0
    """A worker that has reported and then sends no report for this long may be lost: its node's Lease is checked."""
    node_lease_timeout_s: float = 20.0
    """A worker without reports is lost when its node's Lease was not renewed for this long either."""
    final_save_s: float = 60.0
    """How long a training may take for a final checkpoint, once it reaches its goal or a worker is terminating."""
    counts_s: float = 5.0
    """For how long the status waits for more when only counts in it have changed. Workers come and go in bursts."""
    counts_cap_s: float = 20.0
    """The longest such wait; within a state each is twice as long as the one before."""
    explain_s: float = 3.0
    """How long workers may take to start before their events are read for the reason."""


TIMING = TrainingJobTiming()
