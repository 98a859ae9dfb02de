"""A Job and its pods at one moment: what runs, what has ended, and what of that is counted already."""

from collections.abc import Set
from functools import cached_property

from holdfast.plane.jobs import indexes
from holdfast.plane.jobs.failure_policy import FAIL_INDEX, match_policy
from holdfast.plane.jobs.standing import failures_before, has_failed, index_of, is_active
from holdfast.plane.objects import Job, Pod


class JobPods:
    """`released` are pods that this process has let go, though the cache may not show it yet."""

    def __init__(self, job: Job, pods: tuple[Pod, ...], released: Set[str] = frozenset()) -> None:
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
        return tuple(pod for pod in self.pods if pod.is_terminating and not pod.has_ended)

    @cached_property
    def new_succeeded(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self._new if pod.status.phase == "Succeeded")

    @cached_property
    def new_failed(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self._new if has_failed(pod, self.job))

    @cached_property
    def succeeded(self) -> int:
        """All successes, those included that no status shows yet."""
        if self.job.is_indexed:
            return len(self.completed_indexes)
        status = self.job.status
        return status.succeeded + len(status.uncounted_terminated_pods.succeeded) + len(self.new_succeeded)

    @cached_property
    def failed(self) -> int:
        """All failures that count."""
        status = self.job.status
        new = sum(match_policy(self.job, pod).counts for pod in self.new_failed if self.is_in_range(pod))
        return status.failed + len(status.uncounted_terminated_pods.failed) + new

    @cached_property
    def completed_indexes(self) -> frozenset[int]:
        before = indexes.parse_indexes(self.job.status.completed_indexes, self._limit)
        return before | self._indexes_of(self.new_succeeded)

    @cached_property
    def failed_indexes(self) -> frozenset[int]:
        """Those that are given up, where indexes fail on their own."""
        if self.job.spec.backoff_limit_per_index is None:
            return frozenset()
        given_up = tuple(pod for pod in self._new if self._gives_up(pod))
        before = indexes.parse_indexes(self.job.status.failed_indexes, self._limit)
        return (before | self._indexes_of(given_up)) - self.completed_indexes

    @cached_property
    def active_indexes(self) -> frozenset[int]:
        return self._indexes_of(self.active)

    @cached_property
    def occupied_indexes(self) -> frozenset[int]:
        """Those whose place is taken."""
        leaving = self.terminating if self.job.replaces_only_failed else ()
        return self.active_indexes | self._indexes_of(leaving)

    @cached_property
    def last_failed(self) -> dict[int, Pod]:
        """Where indexes fail on their own: the last failure of each that neither was replaced nor is given up."""
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
        """A pod of an index that a smaller Job no longer has counts for nothing."""
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
        judgement, limit = match_policy(self.job, pod), self.job.spec.backoff_limit_per_index or 0
        return judgement.action == FAIL_INDEX or (judgement.counts and failures_before(pod) >= limit)
