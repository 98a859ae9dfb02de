"""What follows a failed attempt: a new attempt, at once or after a backoff, or the end of the job."""

from datetime import datetime, timedelta

from holdfast.api.core.objects import Job
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import FailurePolicy
from holdfast.api.trainingjob_status import RestartCounts, TrainingJobStatus
from holdfast.decisions import GiveUp, Retry
from holdfast.pods.failure import PERMANENT, FailureClass, WorkerFailure
from holdfast.times import format_duration, format_time, parse_time
from holdfast.trainingjob.decide.snapshot import TrainingJobTiming

# The program chose an exit code below 128; a code above 128 means that a signal ended it.
PERMANENT_EXIT_CODES = range(1, 128)
FIELDS: dict[FailureClass, str] = {
    "preemption": "preemption",
    "infrastructure": "infrastructure",
    "outOfMemory": "out_of_memory",
    "hang": "hang",
    "application": "application",
}


def restart_or_give_up(
    failure: WorkerFailure, job: TrainingJob, workers: Job | None, now: datetime, timing: TrainingJobTiming
) -> Retry | GiveUp:
    """A quick failure counts into the row of quick failures, unless the worker's node was stopped."""
    give_up = None if failure.is_free else _give_up(failure, job)
    if give_up is not None:
        return give_up
    before = 0 if _was_stable(workers, now, timing) else _status(job).quick_restarts
    if failure.node_stopped and failure.cause == "infrastructure":
        return Retry(failure, None, before)
    consecutive = before + 1
    delay_s = backoff_s(consecutive, timing)
    return Retry(failure, _round_up_to_second(now + timedelta(seconds=delay_s)) if delay_s else None, consecutive)


def backoff_s(consecutive: int, timing: TrainingJobTiming) -> float:
    """No backoff before the first restart, then doubling up to the cap."""
    if consecutive <= 1:
        return 0.0
    return float(min(timing.retry_s * 2 ** min(consecutive - 2, 32), timing.retry_cap_s))


def restarts_against_limit(restarts: RestartCounts | None) -> int:
    """The restarts that count against backoffLimit."""
    return restarts.out_of_memory + restarts.hang + restarts.application if restarts is not None else 0


def with_restart(restarts: RestartCounts | None, cause: FailureClass) -> RestartCounts:
    old = restarts or RestartCounts()
    field = FIELDS[cause]
    counts = {name: getattr(old, name) + (name == field) for name in FIELDS.values()}
    return RestartCounts(**counts)


def _give_up(failure: WorkerFailure, job: TrainingJob) -> GiveUp | None:
    policy = job.spec.failure_policy or FailurePolicy()
    if failure.permanent:
        return GiveUp(PERMANENT, f"{failure.message} (a new attempt would fail in the same way)")
    if policy.restart_policy == "Never":
        return GiveUp("RestartPolicyNever", f"{failure.message} (restartPolicy is Never)")
    if policy.restart_policy == "ExitCode" and failure.exit_code in PERMANENT_EXIT_CODES:
        return GiveUp("PermanentExitCode", f"{failure.message} (restartPolicy ExitCode: codes 1 to 127 are final)")
    used = restarts_against_limit(_status(job).restarts)
    if used >= policy.backoff_limit:
        return GiveUp("BackoffLimitExceeded", f"{failure.message} (after {used} of {policy.backoff_limit} restarts)")
    return None


def _was_stable(workers: Job | None, now: datetime, timing: TrainingJobTiming) -> bool:
    start = workers.status.start_time if workers is not None else ""
    return bool(start) and (now - parse_time(start)).total_seconds() >= timing.stable_after_s


def _round_up_to_second(moment: datetime) -> datetime:
    """A timestamp in status has no fractions of a second, and must not be earlier."""
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)


def _status(job: TrainingJob) -> TrainingJobStatus:
    return job.status or TrainingJobStatus()


# Times at which a TrainingJob changes without an event: its deadline, the next attempt, its deletion.


def deadline(job: TrainingJob, now: datetime) -> datetime | None:
    """When activeDeadlineSeconds are used up: over all attempts, without the time that the job was suspended."""
    policy, status = job.spec.failure_policy, job.status
    if policy is None or policy.active_deadline_seconds is None or status is None or not status.start_time:
        return None
    suspended_s = status.suspended_seconds + suspended_for_s(status, now)
    return parse_time(status.start_time) + timedelta(seconds=policy.active_deadline_seconds + suspended_s)


def suspended_for_s(status: TrainingJobStatus, now: datetime) -> float:
    """How long the current suspension has lasted."""
    for condition in status.conditions:
        if condition.type == "Suspended" and condition.status == "True":
            return max(0.0, (now - parse_time(condition.last_transition_time)).total_seconds())
    return 0.0


def retry_time(job: TrainingJob) -> datetime | None:
    return parse_time(job.status.next_retry_time) if job.status is not None and job.status.next_retry_time else None


def shown_duration(start: str, now: datetime) -> str | None:
    """How long an unfinished job has taken, in growing steps: each step is a status write."""
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
    """A minute at first, then ten minutes, then an hour."""
    return 60 if elapsed_s < 600 else 600 if elapsed_s < 7200 else 3600


def expiry(job: TrainingJob) -> datetime | None:
    """When a job that has ended is to be deleted."""
    ttl_s, status = job.spec.ttl_seconds_after_finished, job.status
    if ttl_s is None or status is None or not status.completion_time:
        return None
    return parse_time(status.completion_time) + timedelta(seconds=ttl_s)
