"""What is to be done about a GPUWorkload next: one course of several."""

from datetime import datetime

from msgspec import Struct

from holdfast.api.gpuworkload import Phase
from holdfast.planning.gpuworkload.leftovers import blocking_pods
from holdfast.planning.gpuworkload.loss import find_failure
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.retry import GiveUp, Retry, retry_or_give_up, retry_time
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.times import format_time
from holdfast.planning.trainingjob.loss import worker_text

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
