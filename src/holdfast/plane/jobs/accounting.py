"""Counts each ended pod once and only once, whatever crashes in between.

A pod is held by a finalizer until its uid is in the Job's status (`uncountedTerminatedPods`); then it is let go; then,
when nothing holds it any more, the uid turns into a number. An Indexed Job needs no uids for its successes: an index
can't be completed twice.
"""

from msgspec import Struct

from holdfast.api.builtin import UncountedTerminatedPods
from holdfast.plane.jobs.census import JobPods
from holdfast.plane.jobs.ending import JobOutcome
from holdfast.plane.jobs.failure_policy import match_policy
from holdfast.plane.jobs.standing import has_failed, index_of
from holdfast.plane.objects import Pod

# Keeps a status below 20 KB; the rest is counted in the next steps.
MOST_UNCOUNTED = 500


class PodCounts(Struct, frozen=True, kw_only=True):
    succeeded: int
    failed: int
    uncounted: UncountedTerminatedPods
    # To be let go, once the rest is in the status.
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
        if not _can_remove_finalizer(census, pod, over) or (is_new and len(succeeded) + len(failed) >= MOST_UNCOUNTED):
            continue
        release.append(pod)
        if not is_new:
            continue
        if pod.status.phase == "Succeeded":
            succeeded += [] if census.job.is_indexed else [pod.metadata.uid]
        elif _counts_as_failed(census, pod, over):
            failed.append(pod.metadata.uid)
    let_go = len(before.succeeded) - sum(uid in held for uid in before.succeeded)
    return PodCounts(
        succeeded=census.succeeded if census.job.is_indexed else status.succeeded + let_go,
        failed=status.failed + len(before.failed) - sum(uid in held for uid in before.failed),
        uncounted=UncountedTerminatedPods(succeeded=tuple(succeeded), failed=tuple(failed)),
        release=tuple(release),
    )


def _can_remove_finalizer(census: JobPods, pod: Pod, over: JobOutcome | None) -> bool:
    if over is not None or pod.status.phase == "Succeeded":
        return True
    if not has_failed(pod, census.job):
        return False
    # The last failure of an index is what its next pod takes the count from.
    index = index_of(pod)
    last = census.last_failed.get(index) if index is not None else None
    return last is None or last.metadata.uid != pod.metadata.uid


def _counts_as_failed(census: JobPods, pod: Pod, over: JobOutcome | None) -> bool:
    """When a Job fails, everything that still runs fails with it."""
    fails = has_failed(pod, census.job) or (over is not None and not over.is_success)
    return fails and census.is_in_range(pod) and match_policy(census.job, pod).counts
