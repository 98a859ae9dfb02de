"""However the controller's steps are cut short, and however late its cache is, each ended pod counts once."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import JobStatus, Pod, UncountedTerminatedPods
from holdfast.local.controllers.job_policies import MAX_UNCOUNTED
from holdfast.local.controllers.jobs import Plan, plan
from holdfast.local.controllers.objects import TemplatedJob
from tests.local.controllers.things import NOW, ago, indexed_job, job, worker

LATER = NOW + timedelta(hours=1)
LONG_AGO = ago(3600)


class World:
    """A Job and its pods as a cluster has them, and a controller that can die between any two writes."""

    def __init__(self, job: TemplatedJob) -> None:
        self.job = job
        self.pods: dict[str, Pod] = {}
        self.ends = {"Succeeded": 0, "Failed": 0}
        self._seen: tuple[Pod, ...] = ()
        self._released: set[str] = set()
        self._made = 0

    def look(self) -> None:
        """The cache catches up."""
        self._seen = tuple(self.pods.values())

    def sync(self, writes: int | None) -> None:
        """One reconcile; after so many writes it dies, with all that it had in mind."""
        steps = plan(self.job, self._seen, LATER, frozenset(self._released))
        for number, write in enumerate(self._writes(steps)):
            if number == writes:
                self._released.clear()
                self.look()  # a new process begins with a fresh list
                return
            write()
        if steps.create:
            self.look()  # a controller waits until its cache shows the pods that it made

    def end(self, chosen: int, phase: str) -> None:
        running = [pod for pod in self.pods.values() if pod.status.phase == "Running"]
        if running:
            pod = running[chosen % len(running)]
            self._put(structs.replace(pod, status=structs.replace(pod.status, phase=phase)))
            self.ends[phase] += 1

    def finish(self) -> None:
        """Everything that still runs succeeds, and the controller comes to rest."""
        for _ in range(200):
            before = self.job, dict(self.pods)
            self.look()
            self.sync(None)
            self.end(0, "Succeeded")
            if (self.job, self.pods) == before:
                return
        raise AssertionError("it never comes to rest")

    def _writes(self, steps: Plan) -> Iterator[Callable[[], None]]:
        yield from (partial(self._make, replica.index) for replica in steps.create)
        if steps.status != self.job.status:
            yield partial(self._write, steps.status)
        yield from (partial(self._let_go, pod) for pod in steps.release)

    def _make(self, index: int | None) -> None:
        self._made += 1
        self._put(worker(index=index, uid=f"pod-{self._made}", made=LONG_AGO))

    def _write(self, status: JobStatus) -> None:
        self.job = structs.replace(self.job, status=status)

    def _let_go(self, pod: Pod) -> None:
        there = self.pods[pod.metadata.uid]
        self._put(structs.replace(there, metadata=structs.replace(there.metadata, finalizers=())))
        self._released.add(pod.metadata.uid)

    def _put(self, pod: Pod) -> None:
        self.pods[pod.metadata.uid] = pod


LOOKS = st.just(World.look)
SYNCS = st.one_of(st.none(), st.integers(0, 4)).map(lambda writes: partial(World.sync, writes=writes))
ENDS = st.builds(
    lambda chosen, phase: partial(World.end, chosen=chosen, phase=phase),
    st.integers(0, 5),
    st.sampled_from(["Succeeded", "Failed"]),
)
ACTIONS = st.lists(st.one_of(LOOKS, SYNCS, ENDS), max_size=50)


@pytest.mark.parametrize(
    "wanted",
    [
        indexed_job(3, backoffLimit=1000),
        job(completions=3, parallelism=2, backoffLimit=1000),
        job(parallelism=2, backoffLimit=1000),
        indexed_job(3, backoffLimitPerIndex=1000),
    ],
    ids=["indexed", "counted", "work queue", "indexes on their own"],
)
@given(actions=ACTIONS)
@settings(max_examples=60, deadline=None)
def test_each_ended_pod_is_counted_once_and_only_once(
    wanted: TemplatedJob, actions: list[Callable[[World], None]]
) -> None:
    world = World(wanted)
    for act in actions:
        act(world)
    world.finish()
    status = world.job.status
    assert world.job.finished_at
    assert status.failed == world.ends["Failed"]
    assert status.succeeded == (3 if wanted.is_indexed else world.ends["Succeeded"])
    assert status.uncounted_terminated_pods == UncountedTerminatedPods()
    assert not any(pod.is_tracked for pod in world.pods.values())


def test_a_pod_is_let_go_only_with_its_uid_in_the_status() -> None:
    failed = worker("Failed")
    steps = plan(job(), (failed,), NOW)
    assert steps.release == (failed,)
    assert steps.status.uncounted_terminated_pods.failed == (failed.metadata.uid,)
    assert steps.status.failed == 0


def test_a_uid_becomes_a_number_when_its_pod_is_let_go_or_gone() -> None:
    uncounted = {"uncountedTerminatedPods": {"failed": ["a", "b"], "succeeded": ["c"]}, "failed": 4}
    pods = (worker("Failed", uid="a", tracked=False), worker("Failed", uid="b"))
    status = plan(job(status=uncounted, backoffLimit=100, completions=9), pods, NOW).status
    assert (status.failed, status.succeeded) == (5, 1)
    assert status.uncounted_terminated_pods.failed == ("b",)


def test_a_pod_that_the_cache_still_shows_as_held_is_not_counted_again() -> None:
    stale = worker("Failed", uid="a")
    status = plan(job(status={"failed": 1}), (stale,), NOW, frozenset({"a"})).status
    assert (status.failed, status.uncounted_terminated_pods.failed) == (1, ())


def test_a_great_many_ends_are_counted_bit_by_bit() -> None:
    pods = tuple(worker("Failed", ended=LONG_AGO) for _ in range(MAX_UNCOUNTED + 20))
    big = job(completions=1000, parallelism=1000, backoffLimit=10_000)
    first = plan(big, pods, NOW)
    assert len(first.status.uncounted_terminated_pods.failed) == len(first.release) == MAX_UNCOUNTED
    again = plan(structs.replace(big, status=first.status), pods, NOW)
    assert again.release == first.release, "those that are counted are let go even when there is no room for more"


def test_an_ignored_failure_is_let_go_without_being_counted() -> None:
    rule = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}}
    failed = worker("Failed", exit_code=1)
    steps = plan(job(podFailurePolicy={"rules": [rule]}, backoffLimit=0), (failed,), NOW)
    assert steps.release == (failed,)
    assert steps.status.uncounted_terminated_pods.failed == ()
    assert not steps.status.conditions
