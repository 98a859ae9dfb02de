"""What is seen of a GPUWorkload at one moment."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.api.builtin import Job, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.planning.placement import WaitMessage

FINISHED_PHASES = ("Succeeded", "Failed")


class Observed(Struct, frozen=True, kw_only=True):
    workload: GPUWorkload
    job: Job | None = None
    """The Job that status names."""
    old_jobs: tuple[Job, ...] = ()
    """Jobs of earlier tries that are not gone yet."""
    pods: tuple[Pod, ...] = ()
    """Those of the Job that status names."""
    old_pods: tuple[Pod, ...] = ()
    """Those of other tries, and of an earlier workload of this name."""
    nodes: Mapping[str, Node] = {}
    """The assigned node and those of all these pods, as far as they are there."""
    offered_node: str = ""
    """The node that it has been given; "" while it waits for one."""
    wait: WaitMessage | None = None
    """What it waits for in the line; None while nobody has looked."""
    pending_s: float = 0.0
    """How long it has waited for the next step to its node, by a clock that never jumps."""
    is_late: bool = False
    """That takes longer than usual: worth asking and telling why."""
    job_problem: str = ""
    """Why its pod can't be made, as the Job controller says."""
    blocked_by: str = ""
    """What keeps its Job from being made, in a sentence; it may pass."""
    rejected_reason: str = ""
    """Why its Job can never be made as it is asked for."""

    @property
    def status(self) -> GPUWorkloadStatus:
        return self.workload.status or GPUWorkloadStatus()

    @property
    def finished(self) -> bool:
        """A workload that has ended stays as it ended, whatever becomes of its Job."""
        return self.status.phase in FINISHED_PHASES

    @property
    def node(self) -> str:
        """Where its present try is, or is to be; "" while it has none."""
        return "" if self.finished else self.status.assigned_node or ""

    @property
    def past_jobs(self) -> tuple[Job, ...]:
        """Jobs that are of no try any more, the last one last."""
        return self.old_jobs if self.node or self.job is None else (*self.old_jobs, self.job)

    @property
    def stopping(self) -> tuple[Pod, ...]:
        """Pods that are of no try any more and have not ended."""
        pods = self.old_pods if self.node else (*self.old_pods, *self.pods)
        return tuple(pod for pod in pods if not pod.is_finished)

    @property
    def jobs_to_delete(self) -> tuple[Job, ...]:
        """Jobs to delete. One that has ended stays to be looked at until another try is under way."""
        if self.finished:
            return self.old_jobs
        return tuple(job for job in self.past_jobs if self.job_is_made or not self._has_ended(job))

    @property
    def job_is_made(self) -> bool:
        return bool(self.node) and self.job is not None and not self.job.metadata.deletion_timestamp

    def _has_ended(self, job: Job) -> bool:
        """A pod that has failed says so before its Job does, which makes no other."""
        if job is self.job and self.pods and all(pod.is_finished for pod in self.pods):
            return True
        return any(job.condition(kind) is not None for kind in ("Complete", "Failed"))

    @property
    def succeeded(self) -> bool:
        return bool(self.node) and self.job is not None and self.job.condition("Complete") is not None
