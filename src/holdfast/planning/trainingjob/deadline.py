"""Moments in a TrainingJob's life that come by themselves: its deadline, the next try, its deletion."""

from datetime import datetime, timedelta

from holdfast.api.trainingjob import TrainingJob, TrainingJobStatus
from holdfast.planning.times import format_duration, format_time, parse_time


def deadline(job: TrainingJob, now: datetime) -> datetime | None:
    """When activeDeadlineSeconds are used up: over all attempts, without the time that the job was suspended."""
    policy, status = job.spec.failure_policy, job.status
    if policy is None or policy.active_deadline_seconds is None or status is None or not status.start_time:
        return None
    suspended_s = status.suspended_seconds + suspended_for_s(status, now)
    return parse_time(status.start_time) + timedelta(seconds=policy.active_deadline_seconds + suspended_s)


def suspended_for_s(status: TrainingJobStatus, now: datetime) -> float:
    """How long the present suspension has lasted."""
    for condition in status.conditions:
        if condition.type == "Suspended" and condition.status == "True":
            return max(0.0, (now - parse_time(condition.last_transition_time)).total_seconds())
    return 0.0


def retry_time(job: TrainingJob) -> datetime | None:
    return parse_time(job.status.next_retry_time) if job.status is not None and job.status.next_retry_time else None


def shown_duration(start: str, now: datetime) -> str | None:
    """How long a job that has not ended has taken, in steps that grow: each is a write of its status."""
    elapsed_s = _elapsed_s(start, now)
    shown_s = elapsed_s - elapsed_s % _step_s(elapsed_s)
    return format_duration(start, format_time(parse_time(start) + timedelta(seconds=shown_s))) if shown_s else None


def next_duration(start: str, now: datetime) -> datetime:
    """When the next step is reached."""
    elapsed_s = _elapsed_s(start, now)
    step_s = _step_s(elapsed_s)
    return parse_time(start) + timedelta(seconds=elapsed_s - elapsed_s % step_s + step_s)


def _elapsed_s(start: str, now: datetime) -> int:
    return max(0, int((now - parse_time(start)).total_seconds()))


def _step_s(elapsed_s: int) -> int:
    """Minutes at first, then ten of them, then hours."""
    return 60 if elapsed_s < 600 else 600 if elapsed_s < 7200 else 3600


def expiry(job: TrainingJob) -> datetime | None:
    """When a job that has ended is to be deleted."""
    ttl_s, status = job.spec.ttl_seconds_after_finished, job.status
    if ttl_s is None or status is None or not status.completion_time:
        return None
    return parse_time(status.completion_time) + timedelta(seconds=ttl_s)
