"""What is seen of a GPUWorkload at one moment."""

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.pods.start_problems import problem_of
from holdfast.scheduling.constraints import PodRequirements
from holdfast.scheduling.messages import WaitMessage
from holdfast.scheduling.request import Request

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


# How long things may take before something is done about them.


class Timing(Struct, frozen=True, kw_only=True):
    bind_timeout_s: float = 120.0
    """How long the chosen node is kept for a pod that is turned away: a scheduler tries again within seconds of news.

    Where the Job controller or the scheduler have not looked at it at all it is kept: a new Job would help nobody.
    """
    reservation_timeout_s: float = 600.0
    """How long room counts as taken for a workload that is not looked at any more.

    Each look begins that anew, and there is one within `bind_timeout_s`: it may fail for as long as five of these.
    """
    node_not_ready_s: float = 10.0
    """How long a node may be silent before a pod that is not there yet goes elsewhere.

    A control plane that comes back after a while takes all nodes for silent for a moment.
    """
    explain_s: float = 10.0
    """After so long it is worth asking why there is no pod, and telling who has not looked."""
    starvation_timeout_s: float = 600.0
    """How long smaller workloads may pass one that does not fit."""
    retry_cap_s: float = 300.0
    """The longest wait before another try, whatever was the reason."""
    infrastructure_backoff_s: float = 10.0
    """Before a further new placement when nodes are lost in a row; doubled each time. The first is at once."""
    stable_after_s: float = 60.0
    """A try that ran so long is no part of such a row."""
    lost_pod_timeout_s: float = 60.0
    """How long after the end of its grace a pod on an unreachable node still holds up the next try."""


TIMING = Timing()


# The way of a try to its node: what it waits for, and for how long by a clock that never jumps.

Awaited = Literal["", "node", "Job", "Job controller", "pod", "scheduler", "room"]
# They have not looked at it yet, and it would be no different with another node: there is no hurry to look for one.
UNSEEN_BY = ("Job controller", "scheduler")


def is_bound(observed: Observed) -> bool:
    """The pod of the present try has its node."""
    return any(pod.spec.node_name for pod in observed.pods)


def pending_step(observed: Observed) -> Awaited:
    """What the try needs next to get to its node; "" when it is there, or has none."""
    job = observed.job
    if not observed.node or is_bound(observed):
        return ""
    node = observed.nodes.get(observed.node)
    if node is not None and not node.is_ready:
        return "node"
    if job is None or not observed.job_is_made:
        return "Job"
    if observed.pods:
        return "room" if any(map(_is_unschedulable, observed.pods)) else "scheduler"
    # Where somebody else has suspended its Job, no controller is late.
    return "pod" if job.status.start_time or job.spec.suspend else "Job controller"


def is_overdue(observed: Observed, timing: Timing) -> bool:
    """Another node may be better, or somebody else could use this one."""
    what = pending_step(observed)
    return what not in ("", *UNSEEN_BY) and observed.pending_s >= _due_s(what, timing)


def lacks_pod(observed: Observed) -> bool:
    """The Job controller was there, and made none: that has a reason."""
    return pending_step(observed) == "pod" and observed.is_late


def recheck_in_s(observed: Observed, timing: Timing) -> Iterator[float]:
    """When to look again although nothing happens; its room is also kept by that."""
    what = pending_step(observed)
    if not what:
        return
    due_s = (timing.explain_s, timing.bind_timeout_s) if what == "pod" else (_due_s(what, timing),)
    yield from (due - observed.pending_s for due in due_s if due > observed.pending_s)
    yield timing.bind_timeout_s


def start_problem(observed: Observed) -> str:
    """What keeps its pod from starting, as far as anybody says; "" when nobody does."""
    match pending_step(observed):
        case "Job":
            return observed.status.message or ""
        case "pod" if observed.job is not None and observed.job.spec.suspend:
            return f"Job {observed.job.metadata.name} was suspended by somebody else"
        case "pod" if observed.job_problem:
            return f"it is refused: {observed.job_problem}"
        case ("Job controller" | "scheduler") as who if observed.is_late:
            return f"the {who} has not looked at it yet"
    return next(filter(None, map(problem_of, observed.pods)), "")


def _due_s(what: Awaited, timing: Timing) -> float:
    return timing.node_not_ready_s if what == "node" else timing.bind_timeout_s


def _is_unschedulable(pod: Pod) -> bool:
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions)


# Which try of a workload is which: the Job's name in status counts them all, also those that are not retries.


def last_attempt(workload: GPUWorkload) -> int:
    """The number of the try that status names, from 0; -1 before the first."""
    status = workload.status or GPUWorkloadStatus()
    if status.job_name is None:
        return -1
    number = status.job_name.removeprefix(_stem(workload)).removeprefix("-")
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def job_name(workload: GPUWorkload, number: int) -> str:
    return f"{_stem(workload)}-{number}" if number else _stem(workload)


def reservation_id(workload: GPUWorkload, number: int) -> str:
    """A mark for the pod of that try, the same for no other pod ever."""
    return f"{workload.metadata.uid}-{number}"


def _stem(workload: GPUWorkload) -> str:
    return f"{workload.metadata.name}-job"


# What a GPUWorkload asks of the placement: a node for its next try.


def request_for(observed: Observed, shape: PodRequirements) -> Request:
    """`shape` is of its pod. Where its last try was lost is taken only if nothing else will do."""
    workload = observed.workload
    avoided = observed.status.avoided_node
    number = last_attempt(workload) + (0 if observed.node else 1)
    return Request(
        key=workload.metadata.key,
        uid=workload.metadata.uid,
        place=reservation_id(workload, number),
        shape=shape,
        gpus=workload.spec.gpu_count,
        strategy=workload.spec.scheduling_strategy,
        priority=workload.spec.priority,
        since=workload.metadata.creation_timestamp,
        avoided=(avoided,) if avoided else (),
    )
