"""Moments in a TrainingJob's life that come by themselves: its deadline, the next try, its deletion."""

from datetime import datetime, timedelta

from holdfast.api.trainingjob import TrainingJob, TrainingJobStatus
from holdfast.planning.times import moment


def deadline(job: TrainingJob, now: datetime) -> datetime | None:
    """When activeDeadlineSeconds are used up: over all attempts, without the time that the job was suspended."""
    policy, status = job.spec.failure_policy, job.status
    if policy is None or policy.active_deadline_seconds is None or status is None or not status.start_time:
        return None
    suspended_s = status.suspended_seconds + suspended_for_s(status, now)
    return moment(status.start_time) + timedelta(seconds=policy.active_deadline_seconds + suspended_s)


def suspended_for_s(status: TrainingJobStatus, now: datetime) -> float:
    """How long the present suspension has lasted."""
    for condition in status.conditions:
        if condition.type == "Suspended" and condition.status == "True":
            return max(0.0, (now - moment(condition.last_transition_time)).total_seconds())
    return 0.0


def retry_time(job: TrainingJob) -> datetime | None:
    return moment(job.status.next_retry_time) if job.status is not None and job.status.next_retry_time else None


def expiry(job: TrainingJob) -> datetime | None:
    """When a job that has ended is to be deleted."""
    ttl_s, status = job.spec.ttl_seconds_after_finished, job.status
    if ttl_s is None or status is None or not status.completion_time:
        return None
    return moment(status.completion_time) + timedelta(seconds=ttl_s)
