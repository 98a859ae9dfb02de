"""The controllers die at each of their writes in turn and start anew: nothing is done twice, nothing is forgotten."""

import asyncio
from collections import Counter

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.local.controllers.job_pods import index_of
from holdfast.local.controllers.objects import JOBS, TemplatedJob
from tests.local.controllers.bench import STEP_S, Bench, a_cluster, indexed
from tests.local.controllers.crashing import CrashingCluster
from tests.runtime.virtual import virtual

# Sooner or later a run ends without reaching the write that it was to die at; one that goes on for ever is found here.
TOO_MANY_WRITES = 200


class Trainers:
    """The first pod of index 0 fails, all others succeed; or it fails once both run, and the other goes on."""

    def __init__(self, *, both_first: bool) -> None:
        self._both_first = both_first
        self._first = ""
        self.ends: Counter[str] = Counter()

    def exit_code(self, pod: Pod) -> int:
        if index_of(pod) != 0:
            return 0
        self._first = self._first or pod.metadata.uid
        return int(pod.metadata.uid == self._first)

    async def end_all(self, bench: Bench) -> None:
        running = [pod for pod in await bench.pods() if pod.status.phase == "Running" and not pod.is_terminating]
        if self._both_first:
            running = [pod for pod in running if index_of(pod) == 0] if len(running) == 2 else []
        for pod in running:
            code = self.exit_code(pod)
            await bench.end(pod, code)
            self.ends["failed" if code else "succeeded"] += 1


async def run(at: int, *, after: bool, backoff_limit: int) -> tuple[TemplatedJob, Counter[str], bool]:
    async with a_cluster() as bench:
        await bench.crash()
        dying = CrashingCluster(bench.cluster, at, after=after)
        bench.start(dying)
        await bench.add_node()
        key = await bench.run_job(**indexed(2, backoffLimit=backoff_limit))
        trainers = Trainers(both_first=backoff_limit == 0)
        job = await bench.cluster.get(JOBS, key)
        while not job.finished_at:
            await asyncio.sleep(STEP_S)
            if bench.has_crashed:
                await bench.crash()
                bench.start()
                bench.revive("m-1")
            await trainers.end_all(bench)
            job = await bench.cluster.get(JOBS, Key("default", "one"))
        assert all(not pod.metadata.finalizers for pod in await bench.pods())
        return job, trainers.ends, dying.has_crashed


BEFORE_AND_AFTER = pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])


@BEFORE_AND_AFTER
def test_each_pod_is_counted_once_whichever_write_was_the_last(after: bool) -> None:
    @virtual
    async def crash_at_each_write() -> None:
        for at in range(1, TOO_MANY_WRITES):
            job, ends, has_crashed = await run(at, after=after, backoff_limit=3)
            status = job.status
            assert (status.succeeded, status.completed_indexes, status.active) == (2, "0,1", 0), at
            assert ends == {"failed": 1, "succeeded": 2}, at
            assert status.failed == 1, at
            if not has_crashed:
                return
        raise AssertionError("the writes never end")

    crash_at_each_write()


@BEFORE_AND_AFTER
def test_a_job_that_fails_counts_what_it_stopped_whichever_write_was_the_last(after: bool) -> None:
    @virtual
    async def crash_at_each_write() -> None:
        for at in range(1, TOO_MANY_WRITES):
            job, ends, has_crashed = await run(at, after=after, backoff_limit=0)
            status = job.status
            assert [c.type for c in status.conditions] == ["FailureTarget", "Failed"], at
            assert {c.reason for c in status.conditions} == {"BackoffLimitExceeded"}, at
            assert (status.failed, status.succeeded, status.active, status.terminating) == (2, 0, 0, 0), at
            assert ends == {"failed": 1}, at
            if not has_crashed:
                return
        raise AssertionError("the writes never end")

    crash_at_each_write()
