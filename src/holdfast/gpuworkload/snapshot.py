"""The observation of a GPUWorkload at one moment, as `decide` reads it."""

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct, structs

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.decisions import Snapshot
from holdfast.pods.start_problems import problem_of
from holdfast.scheduling.constraints import PodRequirements, Request
from holdfast.scheduling.messages import WaitMessage

FINISHED_PHASES = ("Succeeded", "Failed")


class GPUWorkloadSnapshot(Snapshot, frozen=True, kw_only=True):
    workload: GPUWorkload
    job: Job | None = None
    """The Job that status names."""
    old_jobs: tuple[Job, ...] = ()
    """Jobs of earlier attempts that are not gone yet."""
    pods: tuple[Pod, ...] = ()
    """Pods of the Job that status names."""
    old_pods: tuple[Pod, ...] = ()
    """Pods of other attempts, and of an earlier workload of this name."""
    nodes: Mapping[str, Node] = {}
    """The assigned node and the nodes of all these pods, as far as these nodes exist."""
    offered_node: str = ""
    """The node that the placement offers; "" while the workload waits for a node."""
    wait: WaitMessage | None = None
    """What the workload waits for in the queue; None before the first pass."""
    pending_s: float = 0.0
    """How long the attempt has waited for the next step to its node, by a monotonic clock."""
    is_late: bool = False
    """The step takes longer than usual: worth asking and reporting why."""
    job_problem: str = ""
    """Why the pod can't be made, as the Job controller reports."""
    ask_again_s: float | None = None
    """In how long to ask the placement again, while the workload waits."""

    @property
    def status(self) -> GPUWorkloadStatus:
        return self.workload.status or GPUWorkloadStatus()

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED_PHASES

    @property
    def node(self) -> str:
        """The node of the present attempt; "" while there is none."""
        return "" if self.finished else self.status.assigned_node or ""

    @property
    def past_jobs(self) -> tuple[Job, ...]:
        """Jobs of past attempts, the newest last."""
        return self.old_jobs if self.node or self.job is None else (*self.old_jobs, self.job)

    @property
    def stopping(self) -> tuple[Pod, ...]:
        """Pods of past attempts that have not ended."""
        pods = self.old_pods if self.node else (*self.old_pods, *self.pods)
        return tuple(pod for pod in pods if not pod.is_finished)

    @property
    def jobs_to_delete(self) -> tuple[Job, ...]:
        """Jobs to delete. A finished Job is retained for inspection until another attempt is under way."""
        if self.finished:
            return self.old_jobs
        return tuple(job for job in self.past_jobs if self.job_is_made or not self._has_ended(job))

    @property
    def job_is_made(self) -> bool:
        return bool(self.node) and self.job is not None and not self.job.metadata.deletion_timestamp

    def _has_ended(self, job: Job) -> bool:
        """A failed pod shows the end before its Job does; the Job makes no other pod."""
        if job is self.job and self.pods and all(pod.is_finished for pod in self.pods):
            return True
        return any(job.condition(kind) is not None for kind in ("Complete", "Failed"))

    @property
    def succeeded(self) -> bool:
        return bool(self.node) and self.job is not None and self.job.condition("Complete") is not None


def with_workload(observed: GPUWorkloadSnapshot, workload: GPUWorkload) -> GPUWorkloadSnapshot:
    """The snapshot after a write of status. With a new attempt, the observed Job and pods belong to an old one."""
    after = structs.replace(observed, workload=workload)
    if after.status.job_name == observed.status.job_name:
        return after
    old_pods = (*observed.old_pods, *observed.pods)
    return structs.replace(after, job=None, old_jobs=observed.past_jobs, pods=(), old_pods=old_pods)


# Timeouts and delays.


class GPUWorkloadTiming(Struct, frozen=True, kw_only=True):
    bind_timeout_s: float = 120.0
    """How long the chosen node is reserved for an unschedulable pod: a scheduler retries within seconds of a change.

    While the Job controller or the scheduler has not processed the attempt at all, the node stays reserved: a new Job
    would not help.
    """
    reservation_timeout_s: float = 600.0
    """How long capacity stays reserved for a workload that is not reconciled any more.

    Each reconcile restarts this time, and there is one within `bind_timeout_s`: reconciles may fail for five times as
    long.
    """
    node_not_ready_s: float = 10.0
    """How long a node may be unready before a pod that is not there yet moves to another node.

    A control plane that comes back after a while shows all nodes as unready for a moment.
    """
    explain_s: float = 10.0
    """After so long it is worth asking why there is no pod, and reporting which component has not acted."""
    starvation_timeout_s: float = 600.0
    """How long smaller workloads may pass a workload that does not fit."""
    retry_cap_s: float = 300.0
    """The longest backoff before another attempt, whatever the reason."""
    infrastructure_backoff_s: float = 10.0
    """The backoff before another placement when nodes fail in a row; doubled each time. The first is at once."""
    stable_after_s: float = 60.0
    """An attempt that ran so long is not part of such a row."""
    lost_pod_timeout_s: float = 60.0
    """How long after its grace period a pod on an unreachable node still delays the next attempt."""


TIMING = GPUWorkloadTiming()


# The steps of an attempt to its node: which step is pending, and for how long by a monotonic clock.

Awaited = Literal["", "node", "Job", "Job controller", "pod", "scheduler", "room"]
# These components have not acted yet, and another node would not change that: there is no hurry to choose one.
UNSEEN_BY = ("Job controller", "scheduler")


def is_bound(observed: GPUWorkloadSnapshot) -> bool:
    """The pod of the present attempt is bound to a node."""
    return any(pod.spec.node_name for pod in observed.pods)


def pending_step(observed: GPUWorkloadSnapshot) -> Awaited:
    """What the attempt needs next to get to its node; "" when its pod is bound, or there is no node."""
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
    # When somebody else has suspended the Job, no controller is late.
    return "pod" if job.status.start_time or job.spec.suspend else "Job controller"


def is_overdue(observed: GPUWorkloadSnapshot, timing: GPUWorkloadTiming) -> bool:
    """Another node may be better, or another workload could use this node."""
    step = pending_step(observed)
    return step not in ("", *UNSEEN_BY) and observed.pending_s >= _due_s(step, timing)


def lacks_pod(observed: GPUWorkloadSnapshot) -> bool:
    """The Job controller has acted and made no pod: there is a reason."""
    return pending_step(observed) == "pod" and observed.is_late


def recheck_in_s(observed: GPUWorkloadSnapshot, timing: GPUWorkloadTiming) -> Iterator[float]:
    """When to reconcile again without a change; the reconcile also renews the reservation."""
    step = pending_step(observed)
    if not step:
        return
    due_s = (timing.explain_s, timing.bind_timeout_s) if step == "pod" else (_due_s(step, timing),)
    yield from (due - observed.pending_s for due in due_s if due > observed.pending_s)
    yield timing.bind_timeout_s


def start_problem(observed: GPUWorkloadSnapshot) -> str:
    """What keeps the pod from starting; "" when no component reports a reason."""
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


def _due_s(step: Awaited, timing: GPUWorkloadTiming) -> float:
    return timing.node_not_ready_s if step == "node" else timing.bind_timeout_s


def _is_unschedulable(pod: Pod) -> bool:
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions)


# The number of an attempt: the Job's name in status counts all attempts, also those that are not retries.


def last_attempt(workload: GPUWorkload) -> int:
    """The number of the attempt that status names, from 0; -1 before the first."""
    status = workload.status or GPUWorkloadStatus()
    if status.job_name is None:
        return -1
    number = status.job_name.removeprefix(_stem(workload)).removeprefix("-")
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def job_name(workload: GPUWorkload, number: int) -> str:
    return f"{_stem(workload)}-{number}" if number else _stem(workload)


def reservation_id(workload: GPUWorkload, number: int) -> str:
    """The id for the pod of the attempt; no other pod ever has the same id."""
    return f"{workload.metadata.uid}-{number}"


def _stem(workload: GPUWorkload) -> str:
    return f"{workload.metadata.name}-job"


# The request of a GPUWorkload to the placement: a node for its next attempt.


def request_for(observed: GPUWorkloadSnapshot, shape: PodRequirements) -> Request:
    """`shape` is the requirements of the pod. The node of a failed attempt is used only if no other node fits."""
    workload = observed.workload
    avoided = observed.status.avoided_node
    number = last_attempt(workload) + (0 if observed.node else 1)
    return Request(
        key=workload.metadata.key,
        uid=workload.metadata.uid,
        reservation_id=reservation_id(workload, number),
        shape=shape,
        gpus=workload.spec.gpu_count,
        strategy=workload.spec.scheduling_strategy,
        priority=workload.spec.priority,
        since=workload.metadata.creation_timestamp,
        avoided=(avoided,) if avoided else (),
    )
