"""Whether a Job is over, and why: the first reason that holds stays the reason."""

from datetime import datetime, timedelta

from msgspec import Struct

from holdfast.plane.jobs.census import JobPods
from holdfast.plane.jobs.failure_policy import FAIL_JOB, match_policy
from holdfast.plane.jobs.standing import has_failed
from holdfast.plane.jobs.success_policy import satisfied_rule
from holdfast.plane.objects import Job
from holdfast.planning.times import parse_time

FAILURE_TARGET, SUCCESS_CRITERIA_MET = "FailureTarget", "SuccessCriteriaMet"
FINAL = {FAILURE_TARGET: "Failed", SUCCESS_CRITERIA_MET: "Complete"}


class JobOutcome(Struct, frozen=True):
    """`type` is the condition that comes first; the final one follows when nothing runs any more."""

    type: str
    reason: str
    message: str

    @property
    def is_success(self) -> bool:
        return self.type == SUCCESS_CRITERIA_MET


def job_outcome(census: JobPods, now: datetime) -> JobOutcome | None:
    """Failures are looked for before successes, and what was decided before is not decided again."""
    return _decided(census.job) or _failure(census, now) or _success(census)


def deadline(job: Job) -> datetime | None:
    limit_s = job.spec.active_deadline_seconds
    if limit_s is None or job.spec.suspend or not job.status.start_time:
        return None
    return parse_time(job.status.start_time) + timedelta(seconds=limit_s)


def _decided(job: Job) -> JobOutcome | None:
    for kind in (SUCCESS_CRITERIA_MET, FAILURE_TARGET):
        for condition in job.status.conditions:
            if (condition.type, condition.status) == (kind, "True"):
                return JobOutcome(kind, condition.reason, condition.message)
    return None


def _failure(census: JobPods, now: datetime) -> JobOutcome | None:
    job, due = census.job, deadline(census.job)
    for pod in census.tracked:
        if has_failed(pod, job) and (judgement := match_policy(job, pod)).action == FAIL_JOB:
            return JobOutcome(FAILURE_TARGET, "PodFailurePolicy", judgement.message)
    if census.failed > job.spec.backoff_limit or _restarted_too_often(census):
        return JobOutcome(FAILURE_TARGET, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if due is not None and now >= due:
        return JobOutcome(FAILURE_TARGET, "DeadlineExceeded", "Job was active longer than specified deadline")
    return _failed_indexes(census)


def _restarted_too_often(census: JobPods) -> bool:
    """Containers that are restarted in their pod use up the same limit."""
    limit = census.job.spec.backoff_limit
    running = [pod for pod in census.pods if pod.spec.restart_policy == "OnFailure" and not pod.has_ended]
    restarts = sum(
        status.restart_count
        for pod in running
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    )
    return restarts > 0 and restarts >= limit


def _failed_indexes(census: JobPods) -> JobOutcome | None:
    spec, failed = census.job.spec, len(census.failed_indexes)
    if spec.max_failed_indexes is not None and failed > spec.max_failed_indexes:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return JobOutcome(FAILURE_TARGET, "MaxFailedIndexesExceeded", message)
    if failed and failed + len(census.completed_indexes) >= (spec.completions or 0):
        return JobOutcome(FAILURE_TARGET, "FailedIndexes", "Job has failed indexes")
    return None


def _success(census: JobPods) -> JobOutcome | None:
    job = census.job
    rule = satisfied_rule(job, census.completed_indexes) if job.is_indexed else None
    if rule is not None:
        return JobOutcome(SUCCESS_CRITERIA_MET, "SuccessPolicy", f"Matched rules at index {rule}")
    wanted = 1 if job.spec.completions is None else job.spec.completions
    if census.succeeded >= wanted and not census.active:
        message = "Reached expected number of succeeded pods"
        return JobOutcome(SUCCESS_CRITERIA_MET, "CompletionsReached", message)
    return None
