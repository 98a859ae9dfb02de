"""What is seen of a TrainingJob at one moment."""

from collections.abc import Mapping

from msgspec import Struct, structs

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.pods.failure import WorkerFailure
from holdfast.scheduling.gang import AdmissionDecision

FINISHED_STATES = ("Completed", "Failed")
SPEC_CHANGED = "SpecChanged"


def restart_reason(status: TrainingJobStatus) -> str:
    """One word, told by the condition until the job runs again; "" when it does not restart."""
    held = (each for each in status.conditions if each.type == "Restarting" and each.status == "True")
    return next((each.reason for each in held), "")


class Observed(Struct, frozen=True, kw_only=True):
    job: TrainingJob
    current_job: Job | None = None
    """The Job of the current attempt."""
    old_jobs: tuple[Job, ...] = ()
    """Jobs of earlier attempts that are not gone yet."""
    pods: tuple[Pod, ...] = ()
    """The workers of the current attempt."""
    old_pods: tuple[Pod, ...] = ()
    """Workers of other attempts, and of an earlier job of this name."""
    nodes: Mapping[str, Node] = {}
    """The nodes of all these pods, as far as they are there."""
    admission: AdmissionDecision | None = None
    """Whether all workers fit; None while nobody has looked."""
    gpus_per_worker: int = 0
    claim: str = ""
    """The claim that the workers keep their checkpoints on, if they do."""
    spec_changed: bool = False
    """The current attempt was made for another spec than the one that is written now."""
    queued: bool = False
    """Kueue decides when the attempt starts."""
    min_workers: int = 0
    """Workers with which the launcher carries on: a lost one is replaced in the same attempt. 0: all are needed."""
    liveness_failure: WorkerFailure | None = None
    """What the workers' reports, or their silence, say about the attempt."""
    lost_pods: frozenset[str] = frozenset()
    """Pods, by uid, that are lost with their nodes although Kubernetes has not noticed yet."""
    saving_pods: frozenset[str] = frozenset()
    """Pods, by uid, that are told to go and have been asked to save first."""
    avoids_wrong_nodes: bool = False
    """The attempt has not started, and was made to avoid other nodes than those that are lost now."""
    pod_events: Mapping[str, str] = {}
    """What events say about pods that show no problem themselves, by the pod's uid."""
    job_event: str = ""
    """What events say about pods that can't be made."""
    store_in_use: str = ""
    """Which earlier job keeps its checkpoints in the same place and has not ended, in a sentence."""
    blocked_by: str = ""
    """What keeps the children from being made, in a sentence; it may pass."""
    rejected_reason: str = ""
    """Why the children can never be made as they are asked for."""

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
        """A job that has ended stays as it ended, whatever becomes of its children."""
        return self.state in FINISHED_STATES

    @property
    def restart_reason(self) -> str:
        return restart_reason(self.status)

    @property
    def started(self) -> bool:
        """The current attempt was let go."""
        job = self.current_job
        return job is not None and not job.spec.suspend and not job.metadata.deletion_timestamp

    @property
    def running_old_pods(self) -> tuple[Pod, ...]:
        """Workers that are not of this attempt and have not ended."""
        return tuple(pod for pod in self.old_pods if not pod.is_finished)

    @property
    def bound(self) -> tuple[Pod, ...]:
        """Workers that hold their place on a node."""
        return tuple(pod for pod in self.pods if pod.spec.node_name and not pod.is_finished)

    @property
    def succeeded(self) -> bool:
        return self.current_job is not None and self.current_job.condition("Complete") is not None

    def in_next_attempt(self, job: TrainingJob, admission: AdmissionDecision | None) -> "Observed":
        """The same moment once `job` has the number of the next attempt: all that was is the old one's."""
        old = (self.current_job,) if self.current_job is not None else ()
        return structs.replace(
            self,
            job=job,
            admission=admission,
            current_job=None,
            pods=(),
            old_jobs=(*self.old_jobs, *old),
            old_pods=(*self.old_pods, *self.pods),
            spec_changed=False,
            avoids_wrong_nodes=False,
            saving_pods=frozenset(),
            liveness_failure=None,
            pod_events={},
            job_event="",
        )


# How long things may take before something is done about them; every figure is an option of the operator.


class Timing(Struct, frozen=True, kw_only=True):
    retry_s: float = 10.0
    """Before the second restart in a row; doubled with each further one. The first is at once."""
    retry_cap_s: float = 300.0
    stable_after_s: float = 600.0
    """An attempt that ran so long is no part of a row of failures."""
    restart_grace_s: int = 5
    """What the workers that are left of a broken gang get: alone they have nothing to save."""
    restart_upload_grace_s: int = 30
    """The same where a whole checkpoint may still be on its way to an object store."""
    lost_pod_timeout_s: float = 60.0
    """How long after the end of its grace a pod on an unreachable node still holds up the next attempt."""
    starvation_timeout_s: float = 600.0
    """How long smaller jobs may pass one that does not fit."""
    reservations_per_namespace: int = 1
    """For how many jobs of a namespace that have waited for longer what they lack is reserved at a time."""
    bind_timeout_s: float = 600.0
    """How long an admitted gang may take to get all its nodes before it makes room again."""
    report_timeout_s: float = 15.0
    """A worker that has reported and says nothing for so long may be lost: its node's Lease is looked at."""
    node_lease_timeout_s: float = 20.0
    """A silent worker is lost when its node's Lease was not renewed for so long either."""
    final_save_s: float = 60.0
    """How long a training may take for a last checkpoint, when it has reached its goal or a worker is told to go."""
    explain_s: float = 3.0
    """How long workers may take to start before their events are read for the reason."""


TIMING = Timing()
