"""When a failed try is followed by another."""

from datetime import datetime, timedelta
from hashlib import blake2b

from msgspec import Struct

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus, RetryPolicy
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.gpuworkload.tries import last_attempt
from holdfast.planning.times import parse_time
from holdfast.planning.trainingjob.classes import WorkerFailure
from holdfast.planning.trainingjob.exits import PERMANENT

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
