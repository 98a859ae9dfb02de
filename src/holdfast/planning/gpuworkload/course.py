"""What is to be done about a GPUWorkload next: one course of several."""

from datetime import datetime

from msgspec import Struct

from holdfast.api.gpuworkload import Phase
from holdfast.planning.gpuworkload.leftovers import holding_up
from holdfast.planning.gpuworkload.loss import find_loss
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.retry import GiveUp, Retry, after, retry_time
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.times import timestamp
from holdfast.planning.trainingjob.loss import worker

BACKING_OFF = "BackingOff"


class Finding(Struct, frozen=True):
    """Where the workload stands: its phase, one word why, and a sentence for people."""

    phase: Phase
    reason: str
    message: str


class Over(Struct, frozen=True):
    """It has ended: nothing of it may run on."""


class Finish(Struct, frozen=True):
    """It ends now."""

    finding: Finding


class Again(Struct, frozen=True):
    """The try is lost and another follows: that is in status before anything is deleted, so that a crash is seen."""

    retry: Retry


class Stop(Struct, frozen=True):
    """It is suspended: its try ends, and its GPUs are given back."""


class Hold(Struct, frozen=True):
    """Nothing is made. Without a finding not even the status changes."""

    finding: Finding | None


class Place(Struct, frozen=True):
    """A node is chosen: that is in status before the Job is made."""

    machine: str


class Go(Struct, frozen=True):
    """The try's Job is made, and followed."""


Course = Over | Finish | Again | Stop | Hold | Place | Go


def decide(observed: Observed, now: datetime, timing: Timing) -> Course:
    if observed.finished:
        return Over()
    if observed.refusal:
        return Finish(Finding("Failed", "Refused", observed.refusal))
    if observed.succeeded:
        return Finish(Finding("Succeeded", "Completed", f"the workload succeeded on {observed.node}"))
    if observed.node:
        return _follow(observed, now, timing)
    held = _holds_off(observed, now, timing)
    if held is not None:
        return Hold(held)
    if observed.machine:
        return Place(observed.machine)
    wait = observed.wait
    return Hold(Finding("Pending", "NeverFits" if wait.never else "NoRoom", wait.message) if wait is not None else None)


def wants_machine(observed: Observed, now: datetime, timing: Timing) -> bool:
    """Whether it stands in line, or keeps what it was given there."""
    return not (observed.finished or observed.refusal or observed.node or _holds_off(observed, now, timing))


def _follow(observed: Observed, now: datetime, timing: Timing) -> Course:
    if observed.workload.spec.suspend:
        return Stop()
    loss = find_loss(observed, timing)
    if loss is None:
        return Go()
    match after(loss, observed.workload, now, timing):
        case GiveUp(reason, message):
            return Finish(Finding("Failed", reason, message))
        case retry:
            return Again(retry)


def _holds_off(observed: Observed, now: datetime, timing: Timing) -> Finding | None:
    """Why it does not even ask for a node yet."""
    stopping = holding_up(observed, now, timing)
    if observed.workload.spec.suspend:
        message = "spec.suspend is true; set it to false to go on"
        return Finding("Pending", "Suspended", f"waiting for its pod to stop: {message}" if stopping else message)
    due = retry_time(observed.status, now, timing)
    if due is not None:
        # What failed stays the message; it was written together with the time.
        return Finding("Pending", BACKING_OFF, observed.status.message or f"next try at {timestamp(due)}")
    if stopping:
        return Finding("Pending", "StoppingPod", f"waiting for {worker(stopping[0])} to stop before the next try")
    return None
