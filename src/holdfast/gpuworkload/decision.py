"""What is to be done about a GPUWorkload next: one course of several."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import blake2b

from msgspec import Struct, structs

from holdfast.api.core.objects import Pod
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus, Phase, RetryPolicy
from holdfast.gpuworkload.snapshot import (
    Observed,
    Timing,
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

# What has become of a workload's try, if it is lost.


def find_failure(observed: Observed, timing: Timing) -> WorkerFailure | None:
    """Why the present try can't go on; None while it can."""
    if any(pod.status.phase == "Succeeded" for pod in observed.pods):
        return None  # its Job will say so
    return _of_pod(observed) or _of_node(observed, timing) or _of_job(observed) or _unbound(observed, timing)


def _of_pod(observed: Observed) -> WorkerFailure | None:
    broken = (pod for pod in observed.pods if pod.status.phase == "Failed" or pod.is_terminating)
    for pod in broken:
        loss = classify_failure(pod, observed.nodes, collateral=False)
        if loss is not None:
            # In a later try the command was found before, or its node differs.
            is_first = last_attempt(observed.workload) == 0 and not loss.is_free
            return structs.replace(loss, permanent=True) if is_first and could_not_start(pod) else loss
    return None


def _of_node(observed: Observed, timing: Timing) -> WorkerFailure | None:
    """A node that is silent may come back to a pod that it has; one that has none yet is soon better off elsewhere."""
    node = observed.nodes.get(observed.node)
    if node is None:
        return WorkerFailure(cause="infrastructure", message=f"node {observed.node} is gone")
    if pending_step(observed) != "node" or not is_overdue(observed, timing):
        return None
    return WorkerFailure(
        cause=failure_class_of_node(node),
        message=f"node {observed.node} was not ready any more when the pod was to start",
    )


def _of_job(observed: Observed) -> WorkerFailure | None:
    job = observed.job
    if job is None or job.metadata.deletion_timestamp:
        if observed.status.phase == "Scheduling":
            return None  # it is still to be made
        return WorkerFailure(cause="infrastructure", message="its Job was deleted from outside")
    is_over = job.condition("Failed") or job.condition("FailureTarget")
    # A pod that failed by itself stays to be looked at. One that still seems to run will be seen to have failed.
    if is_over and not observed.pods:
        return WorkerFailure(cause="infrastructure", message="its pod was deleted from outside")
    return None


def _unbound(observed: Observed, timing: Timing) -> WorkerFailure | None:
    if not is_overdue(observed, timing):
        return None
    message = f"its pod did not get node {observed.node} within {timing.bind_timeout_s:.0f} s"
    because = start_problem(observed)
    return WorkerFailure(cause="infrastructure", message=f"{message}: {because}" if because else message)


# Pods of earlier tries: how long they hold up the next one, so that no workload runs twice.


def blocking_pods(observed: Observed, now: datetime, timing: Timing) -> tuple[Pod, ...]:
    """Those that may still run. What was on a node that is gone does not; a silent node is given some time."""
    return tuple(pod for pod in observed.stopping if _may_run(pod, observed, now, timing))


def give_up_times(observed: Observed, timing: Timing) -> Iterator[datetime]:
    """When pods on silent nodes are no longer waited for."""
    for pod in observed.stopping:
        node = observed.nodes.get(pod.spec.node_name)
        if pod.is_terminating and node is not None and not node.is_ready:
            yield _given_up_at(pod, timing)


def _may_run(pod: Pod, observed: Observed, now: datetime, timing: Timing) -> bool:
    if not pod.spec.node_name:
        return True  # until it is deleted, which takes a moment, the scheduler may bind it
    node = observed.nodes.get(pod.spec.node_name)
    if node is None:
        return False
    return node.is_ready or not pod.is_terminating or now < _given_up_at(pod, timing)


def _given_up_at(pod: Pod, timing: Timing) -> datetime:
    return parse_time(pod.metadata.deletion_timestamp) + timedelta(seconds=timing.lost_pod_timeout_s)


# When a failed try is followed by another.

# By how much a wait differs from its even length, so that what failed together does not come back together.
SPREAD = 0.1


class GiveUp(Struct, frozen=True):
    reason: str
    message: str


class Retry(Struct, frozen=True):
    loss: WorkerFailure
    at: datetime | None
    """When the next try may start; None means at once."""


def retry_or_give_up(loss: WorkerFailure, workload: GPUWorkload, now: datetime, timing: Timing) -> Retry | GiveUp:
    """What is nobody's fault is free; the workload's own failures use up its retries."""
    status, policy = workload.status or GPUWorkloadStatus(), workload.spec.retry_policy or RetryPolicy()
    if loss.is_free:
        delay_s = _infrastructure_backoff_s(loss, workload, status, now, timing)
    elif loss.permanent:
        return GiveUp(PERMANENT, f"{loss.message} (another try would fail in the same way)")
    elif status.retry_count >= policy.max_retries:
        used = f"after {status.retry_count} of {policy.max_retries} retries"
        return GiveUp("RetriesExhausted", f"{loss.message} ({used})")
    else:
        delay_s = backoff_s(policy.backoff_seconds, status.retry_count, workload.metadata.uid, timing)
    return Retry(loss, _moment_after(now, delay_s, timing) if delay_s else None)


def backoff_s(base_s: float, retries: int, uid: str, timing: Timing) -> float:
    """After so many retries, before the next: doubled each time, spread a little, and never longer than the cap.

    The spread is the workload's own, so that a decision that is made again is the same.
    """
    spread = 1 + SPREAD * (2 * _fraction(f"{uid} {retries}") - 1)
    return float(min(base_s * 2 ** min(max(retries, 0), 32) * spread, timing.retry_cap_s))


def retry_time(status: GPUWorkloadStatus, now: datetime, timing: Timing) -> datetime | None:
    """When the next try may start; None means now. A moment too far away to be meant was written by another clock."""
    if not status.next_retry_time:
        return None
    due = parse_time(status.next_retry_time)
    return due if now < due <= now + timedelta(seconds=timing.retry_cap_s) else None


def _infrastructure_backoff_s(
    loss: WorkerFailure, workload: GPUWorkload, status: GPUWorkloadStatus, now: datetime, timing: Timing
) -> float:
    """A node that breaks whatever comes to it, or never takes it, must not be fed without a pause."""
    if loss.node_stopped and loss.cause == "infrastructure":
        return 0.0
    # By our own clock on both sides: that of whoever writes the Job's times may be another.
    began = status.last_schedule_time if status.phase == "Running" else None
    if began and (now - parse_time(began)).total_seconds() >= timing.stable_after_s:
        return 0.0
    lost_before = last_attempt(workload) - status.retry_count
    if lost_before <= 0:
        return 0.0
    return float(min(timing.infrastructure_backoff_s * 2 ** min(lost_before - 1, 32), timing.retry_cap_s))


def _moment_after(now: datetime, delay_s: float, timing: Timing) -> datetime:
    """A timestamp in status has no parts of a second: the next whole one, unless that would be beyond the cap."""
    due = (now + timedelta(seconds=delay_s, microseconds=999_999)).replace(microsecond=0)
    return min(due, (now + timedelta(seconds=timing.retry_cap_s)).replace(microsecond=0))


def _fraction(text: str) -> float:
    """From 0 to 1, always the same for the same text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) / 2**64


BACKING_OFF = "BackingOff"


class StateReason(Struct, frozen=True):
    """Where the workload stands: its phase, one word why, and a sentence for people."""

    phase: Phase
    reason: str
    message: str


class CleanUp(Struct, frozen=True):
    """It has ended: nothing of it may run on."""


class Finish(Struct, frozen=True):
    """It ends now."""

    finding: StateReason


class RetryAttempt(Struct, frozen=True):
    """The try is lost and another follows: that is in status before anything is deleted, so that a crash is seen."""

    retry: Retry


class Suspend(Struct, frozen=True):
    """It is suspended: its try ends, and its GPUs are given back."""


class Wait(Struct, frozen=True):
    """Nothing is made. Without a finding not even the status changes."""

    finding: StateReason | None


class AssignNode(Struct, frozen=True):
    """A node is chosen: that is in status before the Job is made."""

    machine: str


class RunJob(Struct, frozen=True):
    """The try's Job is made, and followed."""


Action = CleanUp | Finish | RetryAttempt | Suspend | Wait | AssignNode | RunJob


def decide(observed: Observed, now: datetime, timing: Timing) -> Action:
    if observed.finished:
        return CleanUp()
    if observed.rejected_reason:
        return Finish(StateReason("Failed", "Refused", observed.rejected_reason))
    if observed.succeeded:
        return Finish(StateReason("Succeeded", "Completed", f"the workload succeeded on {observed.node}"))
    if observed.node:
        return _follow(observed, now, timing)
    held = _wait_reason(observed, now, timing)
    if held is not None:
        return Wait(held)
    if observed.offered_node:
        return AssignNode(observed.offered_node)
    wait = observed.wait
    return Wait(
        StateReason("Pending", "NeverFits" if wait.never else "NoRoom", wait.message) if wait is not None else None
    )


def needs_node(observed: Observed, now: datetime, timing: Timing) -> bool:
    """Whether it stands in line, or keeps what it was given there."""
    return not (observed.finished or observed.rejected_reason or observed.node or _wait_reason(observed, now, timing))


def _follow(observed: Observed, now: datetime, timing: Timing) -> Action:
    if observed.workload.spec.suspend:
        return Suspend()
    loss = find_failure(observed, timing)
    if loss is None:
        return RunJob()
    match retry_or_give_up(loss, observed.workload, now, timing):
        case GiveUp(reason, message):
            return Finish(StateReason("Failed", reason, message))
        case retry:
            return RetryAttempt(retry)


def _wait_reason(observed: Observed, now: datetime, timing: Timing) -> StateReason | None:
    """Why it does not even ask for a node yet."""
    stopping = blocking_pods(observed, now, timing)
    if observed.workload.spec.suspend:
        message = "spec.suspend is true; set it to false to go on"
        return StateReason("Pending", "Suspended", f"waiting for its pod to stop: {message}" if stopping else message)
    due = retry_time(observed.status, now, timing)
    if due is not None:
        # What failed stays the message; it was written together with the time.
        return StateReason("Pending", BACKING_OFF, observed.status.message or f"next try at {format_time(due)}")
    if stopping:
        return StateReason(
            "Pending", "StoppingPod", f"waiting for {worker_text(stopping[0])} to stop before the next try"
        )
    return None


# When a GPUWorkload has to be looked at again although nothing happens.


def requeue_at(observed: Observed, now: datetime, timing: Timing) -> datetime | None:
    """The next moment at which a decision may differ; None when only news can change it."""
    return min((due for due in _moments(observed, now, timing) if due > now), default=None)


def expiry(workload: GPUWorkload) -> datetime | None:
    """When a workload that has ended is to be deleted."""
    ttl_s, status = workload.spec.ttl_seconds_after_finished, workload.status
    if ttl_s is None or status is None:
        return None
    ends = (each for each in status.conditions if each.type in ("Succeeded", "Failed") and each.status == "True")
    ended = next((parse_time(each.last_transition_time) for each in ends), None)
    return ended + timedelta(seconds=ttl_s) if ended is not None else None


def _moments(observed: Observed, now: datetime, timing: Timing) -> Iterator[datetime]:
    if observed.finished:
        yield from filter(None, (expiry(observed.workload),))
        return
    due = retry_time(observed.status, now, timing)
    if due is not None:
        yield due
    yield from give_up_times(observed, timing)


# Where a workload and the placement meet: it stands in line, keeps its room, or gives it back.


def sync_placement(
    observed: Observed, placement: Placement, shape: PodRequirements, now: datetime, now_s: float, timing: Timing
) -> tuple[Observed, float | None]:
    """What is seen, with what the placement says; and in how long to ask it again, while the workload waits.

    `shape` is of its pod; `now_s` is the time by a clock that never jumps. To be called before every decision, and for
    every workload before the first look: so a choice that is written in a status counts from the start.
    """
    request, awaited_s = request_for(observed, shape), 0.0
    if needs_node(observed, now, timing):
        placement.enqueue(request, now_s)
    elif step := pending_step(observed):
        awaited_s = placement.confirm(request, observed.node, now_s, step)
    else:
        placement.leave(request.uid)
    found = placement.wait(request.uid, now_s)
    wait, again_s = found if found is not None else (None, None)
    machine = placement.offered_node(request.uid) or ""
    is_late = awaited_s >= timing.explain_s
    return structs.replace(observed, offered_node=machine, wait=wait, pending_s=awaited_s, is_late=is_late), again_s
