"""The rules of a Job: backoff, success policy, outcome, scale, and the counting of finished pods."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from msgspec import Struct

from holdfast.api.core.objects import Pod, UncountedTerminatedPods
from holdfast.local.controllers import job_pods
from holdfast.local.controllers.job_pods import (
    FAIL_JOB,
    JobPods,
    failures_before,
    finished_at,
    has_failed,
    ignored_failures_before,
    index_of,
    is_ready,
    match_policy,
)
from holdfast.local.controllers.objects import JobSuccessPolicy, JobSuccessPolicyRule, TemplatedJob
from holdfast.times import parse_time

BASE_S = 10.0
CAP_S = 600.0


def backoff_remaining_s(succeeded: Sequence[Pod], failed: Sequence[Pod], now: datetime) -> float:
    """How long to wait after the last failure; a success resets the backoff."""
    last_success = max(map(finished_at, succeeded), default=None)
    failures = [at for at in map(finished_at, failed) if last_success is None or at > last_success]
    return _remaining_s(len(failures), max(failures), now) if failures else 0.0


def remaining_of_index_s(last: Pod | None, now: datetime) -> float:
    """The same for one index under a backoff limit per index; each pod carries its index's failure count."""
    if last is None:
        return 0.0
    return _remaining_s(failures_before(last) + ignored_failures_before(last) + 1, finished_at(last), now)


def _remaining_s(failures: int, last: datetime, now: datetime) -> float:
    delay_s = min(CAP_S, BASE_S * 2.0 ** min(failures - 1, 16))
    return max(0.0, delay_s - (now - last).total_seconds())


# The success policy: when the succeeded indexes are enough for the whole Job.


def satisfied_rule(job: TemplatedJob, completed: frozenset[int]) -> int | None:
    """The number of the first rule that is satisfied."""
    policy = job.spec.success_policy or JobSuccessPolicy()
    limit = job.spec.completions or 0
    return next((number for number, rule in enumerate(policy.rules) if _is_satisfied(rule, completed, limit)), None)


def _is_satisfied(rule: JobSuccessPolicyRule, completed: frozenset[int], limit: int) -> bool:
    wanted = job_pods.parse_indexes(rule.succeeded_indexes, limit)
    counted = completed & wanted if rule.succeeded_indexes else completed
    if rule.succeeded_count is not None:
        return len(counted) >= rule.succeeded_count
    return bool(wanted) and counted == wanted


# Whether a Job has finished, and why. The first reason stays the reason.

FAILURE_TARGET, SUCCESS_CRITERIA_MET = "FailureTarget", "SuccessCriteriaMet"
FINAL = {FAILURE_TARGET: "Failed", SUCCESS_CRITERIA_MET: "Complete"}


class JobOutcome(Struct, frozen=True):
    """`type` is the interim condition; the final condition follows when no pod is active any more."""

    type: str
    reason: str
    message: str

    @property
    def is_success(self) -> bool:
        return self.type == SUCCESS_CRITERIA_MET


def job_outcome(census: JobPods, now: datetime) -> JobOutcome | None:
    """A recorded outcome stands; otherwise failures are checked before successes."""
    return _recorded_outcome(census.job) or _failure(census, now) or _success(census)


def deadline(job: TemplatedJob) -> datetime | None:
    limit_s = job.spec.active_deadline_seconds
    if limit_s is None or job.spec.suspend or not job.status.start_time:
        return None
    return parse_time(job.status.start_time) + timedelta(seconds=limit_s)


def _recorded_outcome(job: TemplatedJob) -> JobOutcome | None:
    for kind in (SUCCESS_CRITERIA_MET, FAILURE_TARGET):
        for condition in job.status.conditions:
            if (condition.type, condition.status) == (kind, "True"):
                return JobOutcome(kind, condition.reason, condition.message)
    return None


def _failure(census: JobPods, now: datetime) -> JobOutcome | None:
    job, due = census.job, deadline(census.job)
    for pod in census.tracked:
        if has_failed(pod, job) and (match := match_policy(job, pod)).action == FAIL_JOB:
            return JobOutcome(FAILURE_TARGET, "PodFailurePolicy", match.message)
    if census.failed > job.spec.backoff_limit or _restarted_too_often(census):
        return JobOutcome(FAILURE_TARGET, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if due is not None and now >= due:
        return JobOutcome(FAILURE_TARGET, "DeadlineExceeded", "Job was active longer than specified deadline")
    return _failed_indexes(census)


def _restarted_too_often(census: JobPods) -> bool:
    """Container restarts inside a pod use up the same backoff limit."""
    limit = census.job.spec.backoff_limit
    running = [pod for pod in census.pods if pod.spec.restart_policy == "OnFailure" and not pod.is_finished]
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


# Scale: which pods an unfinished Job creates, and which are surplus.

# The limit of the Kubernetes Job controller: a big Job must not delay the others.
MAX_PODS_PER_STEP = 500


class NewPod(Struct, frozen=True):
    """A pod to create. Under a backoff limit per index it carries the failure counts of its index."""

    index: int | None = None
    failures: int | None = None
    ignored_failures: int = 0


class PodPlan(Struct, frozen=True, kw_only=True):
    create: tuple[NewPod, ...] = ()
    surplus: tuple[Pod, ...] = ()
    again_s: float | None = None


def plan_scale(census: JobPods, now: datetime) -> PodPlan:
    """Either stop pods or create pods, never both in one step."""
    job = census.job
    if job.spec.suspend:
        return PodPlan(surplus=census.active)
    wanted = _wanted(census)
    surplus = _surplus(census, len(census.active) - wanted)
    if surplus:
        return PodPlan(surplus=surplus[:MAX_PODS_PER_STEP])
    leaving = len(census.terminating) if job.replaces_only_failed else 0
    missing = min(wanted - leaving - len(census.active), MAX_PODS_PER_STEP)
    if missing <= 0:
        return PodPlan()
    if job.spec.backoff_limit_per_index is not None:
        return _scale_per_index(census, missing, now)
    wait_s = _wait_s(census, now)
    if wait_s > 0:
        return PodPlan(again_s=wait_s)
    if not job.is_indexed:
        return PodPlan(create=(NewPod(),) * missing)
    return PodPlan(create=tuple(map(NewPod, islice(_open_indexes(census), missing))))


def _wanted(census: JobPods) -> int:
    spec = census.job.spec
    if spec.completions is None:
        # One success is enough: active pods may finish, and no new pod starts.
        return len(census.active) if census.succeeded else spec.parallelism
    return max(0, min(spec.completions - census.succeeded, spec.parallelism))


def _surplus(census: JobPods, at_least: int) -> tuple[Pod, ...]:
    """Pods without an index of their own, then those that lose least: unready, of the highest index, the newest."""
    by_age = sorted(census.active, key=lambda pod: pod.metadata.creation_timestamp)
    candidates, without_index = _group_by_index(census, by_age) if census.job.is_indexed else (by_age, [])
    candidates.reverse()
    candidates.sort(key=lambda pod: (is_ready(pod), -(index_of(pod) or 0)))
    return (*without_index, *candidates[: max(0, at_least - len(without_index))])


def _group_by_index(census: JobPods, by_age: list[Pod]) -> tuple[list[Pod], list[Pod]]:
    """The oldest pod of each index, and the pods that have no index to themselves."""
    oldest: dict[int, Pod] = {}
    without_index = []
    for pod in by_age:
        index = index_of(pod)
        if index is None or index in oldest or not census.is_in_range(pod):
            without_index.append(pod)
        else:
            oldest[index] = pod
    return list(oldest.values()), without_index


def _wait_s(census: JobPods, now: datetime) -> float:
    """Only a pod that ran to its end shows a failure; a pod that was deleted does not."""
    failed = {pod.metadata.uid: pod for pod in census.new_failed}
    failed |= {pod.metadata.uid: pod for pod in census.pods if pod.status.phase == "Failed" and not pod.is_terminating}
    succeeded = [pod for pod in census.pods if pod.status.phase == "Succeeded"]
    return backoff_remaining_s(succeeded, list(failed.values()), now)


def _open_indexes(census: JobPods) -> Iterator[int]:
    taken = census.occupied_indexes | census.completed_indexes | census.failed_indexes
    return (index for index in range(census.job.spec.completions or 0) if index not in taken)


def _scale_per_index(census: JobPods, missing: int, now: datetime) -> PodPlan:
    """Under a backoff limit per index, each index has its own backoff."""
    create: list[NewPod] = []
    waits: list[float] = []
    for index in _open_indexes(census):
        last = census.last_failed.get(index)
        wait_s = remaining_of_index_s(last, now)
        if wait_s > 0:
            waits.append(wait_s)
        elif len(create) < missing:
            create.append(_successor(census, index, last))
    return PodPlan(create=tuple(create), again_s=min(waits, default=None))


def _successor(census: JobPods, index: int, last: Pod | None) -> NewPod:
    if last is None:
        return NewPod(index, 0)
    failures, ignored = failures_before(last), ignored_failures_before(last)
    counts = match_policy(census.job, last).counts
    return NewPod(index, failures + counts, ignored + (not counts))


# Counts each finished pod exactly once, even across crashes (KEP-2307).
#
# A finalizer holds a pod until its uid is in the Job's status (`uncountedTerminatedPods`). Then the finalizer is
# removed. Once the finalizer is gone, the uid is replaced by an increment of the counter. An Indexed Job needs no uids
# for its successes: an index can't be completed twice.

# Keeps a status below 20 KB; the remaining pods are counted in the next steps.
MAX_UNCOUNTED = 500


class PodCounts(Struct, frozen=True, kw_only=True):
    succeeded: int
    failed: int
    uncounted: UncountedTerminatedPods
    # Pods whose finalizer is removed once the other fields are in the status.
    release: tuple[Pod, ...]


def count_finished_pods(census: JobPods, over: JobOutcome | None) -> PodCounts:
    status = census.job.status
    before = status.uncounted_terminated_pods
    held = {pod.metadata.uid for pod in census.tracked}
    succeeded = [uid for uid in before.succeeded if uid in held]
    failed = [uid for uid in before.failed if uid in held]
    release = []
    for pod in census.tracked:
        is_new = pod.metadata.uid not in census.uncounted
        if not _can_remove_finalizer(census, pod, over) or (is_new and len(succeeded) + len(failed) >= MAX_UNCOUNTED):
            continue
        release.append(pod)
        if not is_new:
            continue
        if pod.status.phase == "Succeeded":
            succeeded += [] if census.job.is_indexed else [pod.metadata.uid]
        elif _counts_as_failed(census, pod, over):
            failed.append(pod.metadata.uid)
    released = len(before.succeeded) - sum(uid in held for uid in before.succeeded)
    return PodCounts(
        succeeded=census.succeeded if census.job.is_indexed else status.succeeded + released,
        failed=status.failed + len(before.failed) - sum(uid in held for uid in before.failed),
        uncounted=UncountedTerminatedPods(succeeded=tuple(succeeded), failed=tuple(failed)),
        release=tuple(release),
    )


def _can_remove_finalizer(census: JobPods, pod: Pod, over: JobOutcome | None) -> bool:
    if over is not None or pod.status.phase == "Succeeded":
        return True
    if not has_failed(pod, census.job):
        return False
    # The next pod of an index takes its failure counts from the last failed pod.
    index = index_of(pod)
    last = census.last_failed.get(index) if index is not None else None
    return last is None or last.metadata.uid != pod.metadata.uid


def _counts_as_failed(census: JobPods, pod: Pod, over: JobOutcome | None) -> bool:
    """When a Job fails, all its active pods count as failed."""
    fails = has_failed(pod, census.job) or (over is not None and not over.is_success)
    return fails and census.is_in_range(pod) and match_policy(census.job, pod).counts
