"""Decides the next action for a GPUWorkload. Pure functions: no I/O, no clock."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import blake2b

from msgspec import Struct, structs

from holdfast.api.core.objects import Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus, RetryPolicy
from holdfast.decisions import CleanUp, Finish, GiveUp, Retry, StateReason, Wait
from holdfast.gpuworkload.snapshot import (
    GPUWorkloadSnapshot,
    GPUWorkloadTiming,
    is_overdue,
    last_attempt,
    pending_step,
    request_for,
    start_problem,
)
from holdfast.pods.failure import (
    PERMANENT,
    WorkerFailure,
    classify_failure,
    could_not_start,
    failure_class_of_node,
    worker_text,
)
from holdfast.scheduling.constraints import PodRequirements
from holdfast.scheduling.placement import Placement
from holdfast.times import format_time, parse_time

# Whether and why the present attempt has failed.


def find_failure(observed: GPUWorkloadSnapshot, timing: GPUWorkloadTiming) -> WorkerFailure | None:
    """Why the present attempt can't go on; None while the attempt can."""
    if any(pod.status.phase == "Succeeded" for pod in observed.pods):
        return None  # the Job will report the success
    return (
        _pod_failure(observed)
        or _node_failure(observed, timing)
        or _job_failure(observed)
        or _bind_failure(observed, timing)
    )


def _pod_failure(observed: GPUWorkloadSnapshot) -> WorkerFailure | None:
    broken = (pod for pod in observed.pods if pod.status.phase == "Failed" or pod.is_terminating)
    for pod in broken:
        failure = classify_failure(pod, observed.nodes, collateral=False)
        if failure is not None:
            # In a later attempt the command was found before, or the node differs.
            is_first = last_attempt(observed.workload) == 0 and not failure.is_free
            return structs.replace(failure, permanent=True) if is_first and could_not_start(pod) else failure
    return None


def _node_failure(observed: GPUWorkloadSnapshot, timing: GPUWorkloadTiming) -> WorkerFailure | None:
    """An unready node may come back to its running pod; a pod that is not there yet soon moves to another node."""
    node = observed.nodes.get(observed.node)
    if node is None:
        return WorkerFailure(cause="infrastructure", message=f"node {observed.node} is gone")
    if pending_step(observed) != "node" or not is_overdue(observed, timing):
        return None
    return WorkerFailure(
        cause=failure_class_of_node(node),
        message=f"node {observed.node} was not ready any more when the pod was to start",
    )


def _job_failure(observed: GPUWorkloadSnapshot) -> WorkerFailure | None:
    job = observed.job
    if job is None or job.metadata.deletion_timestamp:
        if observed.status.phase == "Scheduling":
            return None  # the Job is still to be made
        return WorkerFailure(cause="infrastructure", message="its Job was deleted from outside")
    is_over = job.condition("Failed") or job.condition("FailureTarget")
    # A pod that failed by itself is retained for inspection. A pod that still seems to run will be seen to have failed.
    if is_over and not observed.pods:
        return WorkerFailure(cause="infrastructure", message="its pod was deleted from outside")
    return None


def _bind_failure(observed: GPUWorkloadSnapshot, timing: GPUWorkloadTiming) -> WorkerFailure | None:
    if not is_overdue(observed, timing):
        return None
    message = f"its pod did not get node {observed.node} within {timing.bind_timeout_s:.0f} s"
    because = start_problem(observed)
    return WorkerFailure(cause="infrastructure", message=f"{message}: {because}" if because else message)


# Pods of earlier attempts: how long they delay the next attempt, so that no workload runs twice.


def blocking_pods(observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> tuple[Pod, ...]:
    """Old pods that may still run. A pod on a deleted node does not; an unready node is given some time."""
    return tuple(pod for pod in observed.stopping if _may_run(pod, observed, now, timing))


def give_up_times(observed: GPUWorkloadSnapshot, timing: GPUWorkloadTiming) -> Iterator[datetime]:
    """When pods on unready nodes are no longer waited for."""
    for pod in observed.stopping:
        node = observed.nodes.get(pod.spec.node_name)
        if pod.is_terminating and node is not None and not node.is_ready:
            yield _give_up_at(pod, timing)


def _may_run(pod: Pod, observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> bool:
    if not pod.spec.node_name:
        return True  # until the pod is deleted, which takes a moment, the scheduler may bind it
    node = observed.nodes.get(pod.spec.node_name)
    if node is None:
        return False
    return node.is_ready or not pod.is_terminating or now < _give_up_at(pod, timing)


def _give_up_at(pod: Pod, timing: GPUWorkloadTiming) -> datetime:
    return parse_time(pod.metadata.deletion_timestamp) + timedelta(seconds=timing.lost_pod_timeout_s)


# When a failed attempt is retried.

# The jitter of a backoff, so that workloads that failed together do not come back together.
JITTER = 0.1


def retry_or_give_up(
    failure: WorkerFailure, workload: GPUWorkload, now: datetime, timing: GPUWorkloadTiming
) -> Retry | GiveUp:
    """Failures of the infrastructure are free; the workload's own failures use up its retries."""
    status, policy = workload.status or GPUWorkloadStatus(), workload.spec.retry_policy or RetryPolicy()
    if failure.is_free:
        delay_s = _infrastructure_backoff_s(failure, workload, status, now, timing)
    elif failure.permanent:
        return GiveUp(PERMANENT, f"{failure.message} (another try would fail in the same way)")
    elif status.retry_count >= policy.max_retries:
        used = f"after {status.retry_count} of {policy.max_retries} retries"
        return GiveUp("RetriesExhausted", f"{failure.message} ({used})")
    else:
        delay_s = backoff_s(policy.backoff_seconds, status.retry_count, workload.metadata.uid, timing)
    return Retry(failure, _time_after(now, delay_s, timing) if delay_s else None)


def backoff_s(base_s: float, retries: int, uid: str, timing: GPUWorkloadTiming) -> float:
    """The delay before the next retry: doubled with each retry, with some jitter, and never longer than the cap.

    The jitter is a function of the workload's uid, so that a repeated decision is the same.
    """
    jitter = 1 + JITTER * (2 * _fraction(f"{uid} {retries}") - 1)
    return float(min(base_s * 2 ** min(max(retries, 0), 32) * jitter, timing.retry_cap_s))


def retry_time(status: GPUWorkloadStatus, now: datetime, timing: GPUWorkloadTiming) -> datetime | None:
    """When the next attempt may start; None means now. A time beyond the cap was written by another clock."""
    if not status.next_retry_time:
        return None
    due = parse_time(status.next_retry_time)
    return due if now < due <= now + timedelta(seconds=timing.retry_cap_s) else None


def _infrastructure_backoff_s(
    failure: WorkerFailure, workload: GPUWorkload, status: GPUWorkloadStatus, now: datetime, timing: GPUWorkloadTiming
) -> float:
    """A node that breaks every pod, or never takes one, must not get new pods without a pause."""
    if failure.node_stopped and failure.cause == "infrastructure":
        return 0.0
    # Both times are of the operator's clock: the times in the Job may be of another clock.
    began = status.last_schedule_time if status.phase == "Running" else None
    if began and (now - parse_time(began)).total_seconds() >= timing.stable_after_s:
        return 0.0
    failed_before = last_attempt(workload) - status.retry_count
    if failed_before <= 0:
        return 0.0
    return float(min(timing.infrastructure_backoff_s * 2 ** min(failed_before - 1, 32), timing.retry_cap_s))


def _time_after(now: datetime, delay_s: float, timing: GPUWorkloadTiming) -> datetime:
    """A timestamp in status has whole seconds: rounded up, unless the result would be beyond the cap."""
    due = (now + timedelta(seconds=delay_s, microseconds=999_999)).replace(microsecond=0)
    return min(due, (now + timedelta(seconds=timing.retry_cap_s)).replace(microsecond=0))


def _fraction(text: str) -> float:
    """A number from 0 to 1, always the same for the same text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) / 2**64


BACKING_OFF = "BackingOff"


class RetryAttempt(Struct, frozen=True):
    """The attempt failed and another follows. Status has the retry before anything is deleted, to survive a crash."""

    retry: Retry


class Suspend(Struct, frozen=True):
    """The workload is suspended: its attempt ends, and its GPUs become free."""


class AssignNode(Struct, frozen=True):
    """A node is chosen. Status has the node before the Job is made."""

    node: str


class RunJob(Struct, frozen=True):
    """The attempt's Job is made, and followed."""


class StopJobs(Struct, frozen=True):
    """The Jobs of past attempts are deleted; status does not change."""


Action = CleanUp | Finish | RetryAttempt | Suspend | Wait | AssignNode | RunJob | StopJobs


def steps(action: Action) -> tuple[Action, ...]:
    """The action, and what follows once status has it."""
    match action:
        case AssignNode():
            return action, RunJob()
        case RetryAttempt() | Suspend():
            return action, StopJobs()
    return (action,)


def decide(observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> Action:
    if observed.finished:
        return CleanUp()
    if observed.rejected_reason:
        return Finish(StateReason("Failed", "Refused", observed.rejected_reason))
    if observed.succeeded:
        return Finish(StateReason("Succeeded", "Completed", f"the workload succeeded on {observed.node}"))
    if observed.node:
        return _follow(observed, now, timing)
    hold = _hold_reason(observed, now, timing)
    if hold is not None:
        return Wait(hold)
    if observed.offered_node:
        return AssignNode(observed.offered_node)
    wait = observed.wait
    return Wait(
        StateReason("Pending", "NeverFits" if wait.never else "NoRoom", wait.message) if wait is not None else None
    )


def needs_node(observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> bool:
    """Whether the workload is in the queue, or holds a node that the queue offered."""
    return not (observed.finished or observed.rejected_reason or observed.node or _hold_reason(observed, now, timing))


def _follow(observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> Action:
    if observed.workload.spec.suspend:
        return Suspend()
    failure = find_failure(observed, timing)
    if failure is None:
        return RunJob()
    match retry_or_give_up(failure, observed.workload, now, timing):
        case GiveUp(reason, message):
            return Finish(StateReason("Failed", reason, message))
        case retry:
            return RetryAttempt(retry)


def _hold_reason(observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> StateReason | None:
    """Why the workload does not request a node yet."""
    stopping = blocking_pods(observed, now, timing)
    if observed.workload.spec.suspend:
        message = "spec.suspend is true; set it to false to go on"
        return StateReason("Pending", "Suspended", f"waiting for its pod to stop: {message}" if stopping else message)
    due = retry_time(observed.status, now, timing)
    if due is not None:
        # The message stays the failure; it was written together with the time.
        return StateReason("Pending", BACKING_OFF, observed.status.message or f"next try at {format_time(due)}")
    if stopping:
        return StateReason(
            "Pending", "StoppingPod", f"waiting for {worker_text(stopping[0])} to stop before the next try"
        )
    return None


# When a GPUWorkload has to be reconciled again without a change.


def requeue_at(observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> datetime | None:
    """The next moment at which the decision may differ; None when only an event can change the decision."""
    return min((due for due in _moments(observed, now, timing) if due > now), default=None)


def expiry(workload: GPUWorkload) -> datetime | None:
    """When a finished workload is to be deleted."""
    ttl_s, status = workload.spec.ttl_seconds_after_finished, workload.status
    if ttl_s is None or status is None:
        return None
    ends = (each for each in status.conditions if each.type in ("Succeeded", "Failed") and each.status == "True")
    ended = next((parse_time(each.last_transition_time) for each in ends), None)
    return ended + timedelta(seconds=ttl_s) if ended is not None else None


def _moments(observed: GPUWorkloadSnapshot, now: datetime, timing: GPUWorkloadTiming) -> Iterator[datetime]:
    if observed.finished:
        yield from filter(None, (expiry(observed.workload),))
        return
    due = retry_time(observed.status, now, timing)
    if due is not None:
        yield due
    yield from give_up_times(observed, timing)


# Syncs a workload with the placement: the workload waits in the queue, holds its reservation, or releases it.


def sync_placement(
    observed: GPUWorkloadSnapshot,
    placement: Placement,
    shape: PodRequirements,
    now: datetime,
    now_s: float,
    timing: GPUWorkloadTiming,
) -> tuple[GPUWorkloadSnapshot, float | None]:
    """The observation with the result of the placement; and in how long to ask again, while the workload waits.

    `shape` is the requirements of the pod; `now_s` is the time by a monotonic clock. Call this before every decision,
    and for every workload before the first pass: a node that a status assigns then counts from the start.
    """
    request, pending_s = request_for(observed, shape), 0.0
    if needs_node(observed, now, timing):
        placement.enqueue(request, now_s)
    elif step := pending_step(observed):
        pending_s = placement.confirm(request, observed.node, now_s, step)
    else:
        placement.leave(request.uid)
    found = placement.wait(request.uid, now_s)
    wait, again_s = found if found is not None else (None, None)
    node = placement.offered_node(request.uid) or ""
    is_late = pending_s >= timing.explain_s
    return structs.replace(observed, offered_node=node, wait=wait, pending_s=pending_s, is_late=is_late), again_s
