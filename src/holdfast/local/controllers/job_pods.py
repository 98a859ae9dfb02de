"""A Job and its pods at one moment: which pods are active, which have ended, and which are already counted."""

from collections.abc import Iterable, Iterator, Set
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from holdfast.api.core.objects import Pod, find_condition
from holdfast.local.controllers.objects import ExitCodes, PodFailurePolicy, PodFailurePolicyRule, TemplatedJob
from holdfast.times import parse_time

# The state of one pod of a Job.

INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"


def index_of(pod: Pod) -> int | None:
    return _number(pod, INDEX)


def failures_before(pod: Pod) -> int:
    """How often the pod's index had failed when the pod was created."""
    return _number(pod, FAILURES) or 0


def ignored_failures_before(pod: Pod) -> int:
    return _number(pod, IGNORED_FAILURES) or 0


def is_active(pod: Pod) -> bool:
    return not pod.is_finished and not pod.is_terminating


def has_failed(pod: Pod, job: TemplatedJob) -> bool:
    """A terminating pod may never report a failure; it counts as failed, unless the Job waits for its end."""
    if pod.status.phase == "Failed":
        return True
    return pod.is_terminating and pod.status.phase != "Succeeded" and not job.replaces_only_failed


def is_ready(pod: Pod) -> bool:
    ready = find_condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def finished_at(pod: Pod) -> datetime:
    """When the containers ended; else when the pod became unready, was deleted, or was created."""
    meta, ready = pod.metadata, find_condition(pod.status.conditions, "Ready")
    ended = _containers_ended(pod)
    if ended is not None:
        return ended
    if ready is not None and ready.status == "False" and ready.last_transition_time:
        return parse_time(ready.last_transition_time)
    if meta.deletion_timestamp:
        return parse_time(meta.deletion_timestamp) - timedelta(seconds=meta.deletion_grace_period_seconds or 0)
    return parse_time(meta.creation_timestamp)


def _containers_ended(pod: Pod) -> datetime | None:
    sidecars = {container.name for container in pod.spec.init_containers if container.is_sidecar}
    statuses = (
        *pod.status.container_statuses,
        *(status for status in pod.status.init_container_statuses if status.name in sidecars),
    )
    ends = [status.state.terminated.finished_at if status.state.terminated else None for status in statuses]
    moments = [parse_time(end) for end in ends if end]
    return max(moments) if moments and len(moments) == len(ends) else None


def _number(pod: Pod, annotation: str) -> int | None:
    text = pod.metadata.annotations.get(annotation, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


# Sets of completion indexes in the format of a Job's status: 0-2,4.


def parse_indexes(text: str, limit: int) -> frozenset[int]:
    """The indexes below `limit`. Unreadable parts are left out, so that a broken status is repaired."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if all(end.isdecimal() and len(end) < 19 for end in (first, last or first)):
            found.update(range(int(first), min(int(last or first) + 1, limit)))
    return frozenset(found)


def format_indexes(indexes: Iterable[int]) -> str:
    """In order; as in Kubernetes, runs of three or more become a range, and runs of two become a pair."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(_run(first, last) for first, last in runs)


def _run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


# The podFailurePolicy of a Job, applied to a failed pod.

COUNT, IGNORE, FAIL_JOB, FAIL_INDEX = "Count", "Ignore", "FailJob", "FailIndex"


class PolicyMatch(NamedTuple):
    action: str
    message: str = ""

    @property
    def counts(self) -> bool:
        return self.action != IGNORE


def match_policy(job: TemplatedJob, pod: Pod) -> PolicyMatch:
    """The first matching rule decides; without a matching rule the failure counts."""
    policy = job.spec.pod_failure_policy or PodFailurePolicy()
    for number, rule in enumerate(policy.rules):
        if rule.action == FAIL_INDEX and job.spec.backoff_limit_per_index is None:
            continue
        for match in _matches(rule, pod):
            return PolicyMatch(rule.action, f"{match} matching {rule.action} rule at index {number}")
    return PolicyMatch(COUNT)


def _matches(rule: PodFailurePolicyRule, pod: Pod) -> Iterator[str]:
    if rule.on_exit_codes is not None:
        yield from _exit_codes(rule.on_exit_codes, pod)
    for pattern in rule.on_pod_conditions:
        found = find_condition(pod.status.conditions, pattern.type)
        if found is not None and found.status == pattern.status:
            yield f"Pod {pod.metadata.key} has condition {pattern.type}"


def _exit_codes(wanted: ExitCodes, pod: Pod) -> Iterator[str]:
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        ended = status.state.terminated
        if ended is None or ended.exit_code == 0 or wanted.container_name not in ("", status.name):
            continue
        if (ended.exit_code in wanted.values) == (wanted.operator == "In"):
            yield f"Container {status.name} for pod {pod.metadata.key} failed with exit code {ended.exit_code}"


class JobPods:
    """`released` are pods whose finalizer this process has removed, though the cache may not show it yet."""

    def __init__(self, job: TemplatedJob, pods: tuple[Pod, ...], released: Set[str] = frozenset()) -> None:
        self.job = job
        self.pods = pods
        self.tracked = tuple(pod for pod in pods if pod.is_tracked and pod.metadata.uid not in released)
        uncounted = job.status.uncounted_terminated_pods
        self.uncounted = frozenset((*uncounted.succeeded, *uncounted.failed))

    @cached_property
    def active(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if is_active(pod))

    @cached_property
    def terminating(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if pod.is_terminating and not pod.is_finished)

    @cached_property
    def new_succeeded(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self._new if pod.status.phase == "Succeeded")

    @cached_property
    def new_failed(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self._new if has_failed(pod, self.job))

    @cached_property
    def succeeded(self) -> int:
        """All successes, including those that the status does not count yet."""
        if self.job.is_indexed:
            return len(self.completed_indexes)
        status = self.job.status
        return status.succeeded + len(status.uncounted_terminated_pods.succeeded) + len(self.new_succeeded)

    @cached_property
    def failed(self) -> int:
        """All failures that count towards the backoff limit."""
        status = self.job.status
        new = sum(match_policy(self.job, pod).counts for pod in self.new_failed if self.is_in_range(pod))
        return status.failed + len(status.uncounted_terminated_pods.failed) + new

    @cached_property
    def completed_indexes(self) -> frozenset[int]:
        before = parse_indexes(self.job.status.completed_indexes, self._limit)
        return before | self._indexes_of(self.new_succeeded)

    @cached_property
    def failed_indexes(self) -> frozenset[int]:
        """With a backoff limit per index: the indexes that are not retried any more."""
        if self.job.spec.backoff_limit_per_index is None:
            return frozenset()
        given_up = tuple(pod for pod in self._new if self._gives_up(pod))
        before = parse_indexes(self.job.status.failed_indexes, self._limit)
        return (before | self._indexes_of(given_up)) - self.completed_indexes

    @cached_property
    def active_indexes(self) -> frozenset[int]:
        return self._indexes_of(self.active)

    @cached_property
    def occupied_indexes(self) -> frozenset[int]:
        """The indexes that have a pod and need no replacement yet."""
        leaving = self.terminating if self.job.replaces_only_failed else ()
        return self.active_indexes | self._indexes_of(leaving)

    @cached_property
    def last_failed(self) -> dict[int, Pod]:
        """With a backoff limit per index: the last failed pod of each index that is neither replaced nor given up."""
        last: dict[int, Pod] = {}
        if self.job.spec.backoff_limit_per_index is None:
            return last
        settled = self.active_indexes | self.completed_indexes | self.failed_indexes
        for pod in sorted(self.tracked, key=failures_before):
            index = index_of(pod)
            if index is not None and index < self._limit and index not in settled and has_failed(pod, self.job):
                last[index] = pod
        return last

    def is_in_range(self, pod: Pod) -> bool:
        """A pod whose index the Job no longer has, after scaling down, is not counted."""
        index = index_of(pod)
        return not self.job.is_indexed or (index is not None and index < self._limit)

    @cached_property
    def _new(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.tracked if pod.metadata.uid not in self.uncounted)

    @property
    def _limit(self) -> int:
        return self.job.spec.completions or 0

    def _indexes_of(self, pods: tuple[Pod, ...]) -> frozenset[int]:
        found = (index_of(pod) for pod in pods)
        return frozenset(index for index in found if index is not None and index < self._limit)

    def _gives_up(self, pod: Pod) -> bool:
        if not has_failed(pod, self.job):
            return False
        match, limit = match_policy(self.job, pod), self.job.spec.backoff_limit_per_index or 0
        return match.action == FAIL_INDEX or (match.counts and failures_before(pod) >= limit)
