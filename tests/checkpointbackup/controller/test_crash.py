"""The operator dies before and after each of its writes and starts anew: no run is begun twice, none is forgotten."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.api.backup_runs import BackupProgress
from holdfast.api.meta import Key
from holdfast.checkpointbackup.controller import checkpoint_backup_controller
from holdfast.cluster.errors import NotFound, NotLeading
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NAMESPACES, NODES, PODS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from tests.checkpointbackup.controller.lab import CONTAINER, BackupLab, NoCredentials, SeenBackup
from tests.local.controllers.crashing import CrashingCluster
from tests.runtime.virtual import virtual

BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
STEP_S = 5.0
# A run ends sooner or later without reaching the write that it was to die at.
TOO_MANY_WRITES = 60
SIDECAR = {**CONTAINER, "name": "holdfast-sidecar", "restartPolicy": "Always"}


def now() -> datetime:
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


class BackupBench:
    """A pod that runs, an operator that may die, and whoever carries its runs out."""

    def __init__(self, cluster: EmbeddedCluster, first: CrashingCluster) -> None:
        self.lab = BackupLab(cluster, "ml")
        self.cluster = cluster
        self.first = first
        self.carried_out: Counter[int] = Counter()
        self._start(first)

    def _start(self, cluster: Cluster) -> None:
        operator = Operator(cluster, identity="test", now=now, random=Random(0), metrics=Metrics())
        self._requests = BackupRequests()
        operator.add(
            checkpoint_backup_controller(
                operator,
                cluster,
                now=now,
                requests=self._requests,
                credentials=NoCredentials(),
                clock=asyncio.get_running_loop().time,
            )
        )
        self._operator, self._running = operator, asyncio.create_task(operator.run())

    async def step(self) -> SeenBackup:
        await asyncio.sleep(STEP_S)
        if self._running.done():
            assert isinstance(self._running.exception(), NotLeading)
            self._start(self.cluster)
        it = await self.lab.get()
        if it.status.run and not it.has_ended and it.status.phase != "ImagePushed":
            await self._carry_out(it)
        return await self.lab.get()

    async def _carry_out(self, it: SeenBackup) -> None:
        if it.status.mode == "container":
            self.carried_out[it.status.run] += 1
            await self.lab.push_image(complete=not it.spec.stop_pod)
            return
        report = {"uid": it.metadata.uid, "run": it.status.run, "state": "pushed", "image": "r.example/c:1"}
        self.carried_out[it.status.run] = 1
        self._requests.record(it.status.pod_uid, msgspec.convert(report, BackupProgress))

    async def stop(self) -> None:
        self._operator.stop()
        await asyncio.wait([self._running])


@asynccontextmanager
async def a_bench(at: int, *, after: bool, sidecar: bool) -> AsyncIterator[BackupBench]:
    cluster = await open_cluster(None, now=now, rng=Random(1))
    await cluster.create(NAMESPACES, {"metadata": {"name": "ml"}})
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await cluster.create(NODES, {"metadata": {"name": "n1"}, **ready})
    spec: dict[str, Any] = {"containers": [CONTAINER], "nodeName": "n1"}
    if sidecar:
        spec["initContainers"] = [SIDECAR]
    await cluster.create(PODS, {"metadata": {"name": "trainer"}, "spec": spec}, namespace="ml")
    await cluster.patch_status(PODS, Key("ml", "trainer"), {"status": {"phase": "Running"}})
    bench = BackupBench(cluster, CrashingCluster(cluster, at, after=after))
    try:
        yield bench
    finally:
        await bench.stop()
        await cluster.close()


async def one_run(bench: BackupBench, **spec: Any) -> SeenBackup:
    await bench.lab.ask(**spec)
    for _ in range(100):
        it = await bench.step()
        if it.has_ended:
            return it
    raise AssertionError(f"not ended: {it}")


async def two_runs_of_a_schedule(bench: BackupBench) -> SeenBackup:
    await bench.lab.ask(schedule="*/10 * * * *")
    for _ in range(int(1500 / STEP_S)):
        it = await bench.step()
        if it.status.run == 2 and it.has_ended:
            return it
    raise AssertionError(f"not ended: {it}")


STORIES: dict[str, tuple[Any, bool, tuple[str, int], bool]] = {
    # What happens, with a sidecar or not; the last phase and run, and whether the pod is there at the end.
    "once": (one_run, False, ("Completed", 1), True),
    "stop": (partial(one_run, stopPod=True), False, ("CompletedPodDeleted", 1), False),
    "sidecar": (partial(one_run, stopPod=True), True, ("CompletedPodDeleted", 1), False),
    "schedule": (two_runs_of_a_schedule, False, ("Completed", 2), True),
}


async def told(story: str, at: int, *, after: bool) -> bool:
    """Whether the operator lived to reach the write number `at`."""
    tell, sidecar, expected, is_pod_there = STORIES[story]
    async with a_bench(at, after=after, sidecar=sidecar) as bench:
        it = await tell(bench)
        point = f"{'after' if after else 'before'} write {at}"
        assert (it.status.phase, it.status.run, it.status.missed_runs) == (*expected, 0), point
        assert bench.carried_out == dict.fromkeys(range(1, expected[1] + 1), 1), point
        assert await _is_there(bench.cluster, "trainer") == is_pod_there, point
        return bench.first.has_crashed


async def _is_there(cluster: Cluster, pod: str) -> bool:
    try:
        found = await cluster.get(PODS, Key("ml", pod))
    except NotFound:
        return False
    return not found.is_terminating


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_whichever_write_the_operator_dies_at_the_story_ends_the_same(story: str, after: bool) -> None:
    @virtual
    async def each_write() -> None:
        writes = 0
        while await told(story, writes + 1, after=after):
            writes += 1
            assert writes < TOO_MANY_WRITES
        assert writes >= 3  # at least those of a run that is begun: label, status, Event

    each_write()
