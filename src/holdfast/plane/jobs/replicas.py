"""Which pods a Job that goes on makes, and which it can do without."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from msgspec import Struct

from holdfast.plane.jobs import backoff
from holdfast.plane.jobs.census import JobPods
from holdfast.plane.jobs.failure_policy import match_policy
from holdfast.plane.jobs.standing import failures_before, ignored_failures_before, index_of, is_ready
from holdfast.plane.objects import Pod

# As many at a time as the API server's own controller makes: a big Job must not keep the others waiting.
MOST_AT_ONCE = 500


class NewPod(Struct, frozen=True):
    """A pod to be made; an index that fails on its own hands its history down."""

    index: int | None = None
    failures: int | None = None
    ignored_failures: int = 0


class Staffing(Struct, frozen=True, kw_only=True):
    create: tuple[NewPod, ...] = ()
    surplus: tuple[Pod, ...] = ()
    again_s: float | None = None


def plan_scale(census: JobPods, now: datetime) -> Staffing:
    """Either pods go or pods come, never both in one step."""
    job = census.job
    if job.spec.suspend:
        return Staffing(surplus=census.active)
    wanted = _wanted(census)
    surplus = _surplus(census, len(census.active) - wanted)
    if surplus:
        return Staffing(surplus=surplus[:MOST_AT_ONCE])
    leaving = len(census.terminating) if job.replaces_only_failed else 0
    missing = min(wanted - leaving - len(census.active), MOST_AT_ONCE)
    if missing <= 0:
        return Staffing()
    if job.spec.backoff_limit_per_index is not None:
        return _independent(census, missing, now)
    wait_s = _wait_s(census, now)
    if wait_s > 0:
        return Staffing(again_s=wait_s)
    if not job.is_indexed:
        return Staffing(create=(NewPod(),) * missing)
    return Staffing(create=tuple(map(NewPod, islice(_open_indexes(census), missing))))


def _wanted(census: JobPods) -> int:
    spec = census.job.spec
    if spec.completions is None:
        # One success is enough: what runs may end, and nothing more is begun.
        return len(census.active) if census.succeeded else spec.parallelism
    return max(0, min(spec.completions - census.succeeded, spec.parallelism))


def _surplus(census: JobPods, at_least: int) -> tuple[Pod, ...]:
    """Pods without a place of their own, then those that lose least: not ready, of the highest index, the newest."""
    by_age = sorted(census.active, key=lambda pod: pod.metadata.creation_timestamp)
    keepers, misplaced = _placed(census, by_age) if census.job.is_indexed else (by_age, [])
    keepers.reverse()
    keepers.sort(key=lambda pod: (is_ready(pod), -(index_of(pod) or 0)))
    return (*misplaced, *keepers[: max(0, at_least - len(misplaced))])


def _placed(census: JobPods, by_age: list[Pod]) -> tuple[list[Pod], list[Pod]]:
    """The oldest pod of each index, and those that have no index to themselves."""
    keepers: dict[int, Pod] = {}
    misplaced = []
    for pod in by_age:
        index = index_of(pod)
        if index is None or index in keepers or not census.is_in_range(pod):
            misplaced.append(pod)
        else:
            keepers[index] = pod
    return list(keepers.values()), misplaced


def _wait_s(census: JobPods, now: datetime) -> float:
    """Only pods that were there to the end tell of a failure; one that was taken away does not."""
    failed = {pod.metadata.uid: pod for pod in census.new_failed}
    failed |= {pod.metadata.uid: pod for pod in census.pods if pod.status.phase == "Failed" and not pod.is_terminating}
    succeeded = [pod for pod in census.pods if pod.status.phase == "Succeeded"]
    return backoff.backoff_remaining_s(succeeded, list(failed.values()), now)


def _open_indexes(census: JobPods) -> Iterator[int]:
    taken = census.occupied_indexes | census.completed_indexes | census.failed_indexes
    return (index for index in range(census.job.spec.completions or 0) if index not in taken)


def _independent(census: JobPods, missing: int, now: datetime) -> Staffing:
    """Where indexes fail on their own, each waits on its own."""
    create: list[NewPod] = []
    waits: list[float] = []
    for index in _open_indexes(census):
        last = census.last_failed.get(index)
        wait_s = backoff.remaining_of_index_s(last, now)
        if wait_s > 0:
            waits.append(wait_s)
        elif len(create) < missing:
            create.append(_successor(census, index, last))
    return Staffing(create=tuple(create), again_s=min(waits, default=None))


def _successor(census: JobPods, index: int, last: Pod | None) -> NewPod:
    if last is None:
        return NewPod(index, 0)
    failures, ignored = failures_before(last), ignored_failures_before(last)
    counts = match_policy(census.job, last).counts
    return NewPod(index, failures + counts, ignored + (not counts))
