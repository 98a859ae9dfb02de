"""The operator dies before and after each of its writes and starts anew: the same end, one machine for each need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from holdfast.cluster.errors import NotLeading
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PROVISIONED_INSTANCES
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.controller import spot_instance_job_controller
from tests.contract.pods import POOL
from tests.controllers.operating import DEFAULTS
from tests.local.controllers.bench import NAMESPACE, Bench, a_cluster, now
from tests.local.controllers.crashing import CrashingCluster
from tests.runtime.virtual import virtual
from tests.spotinstancejob.controller.lab import SeenSpotJob, SpotLab
from tests.spotinstancejob.controller.players import Agents, Cloud, played_by

# Sooner or later a run ends without reaching the write that it was to die at; one that goes on for ever is found here.
TOO_MANY_WRITES = 150
RESTARTED_AFTER_S = 5.0


class SpotBench:
    """A job with its cloud and its agents, and an operator that is started anew when it has died."""

    def __init__(self, bench: Bench, first: CrashingCluster) -> None:
        self.bench = bench
        self.lab = SpotLab(bench.cluster, NAMESPACE)
        self.first = first
        world = Operator(bench.cluster, identity="world", now=now, random=Random(3), metrics=Metrics())
        self.lab.cloud = Cloud(bench.cluster, world.store(PROVISIONED_INSTANCES), self._add_node)
        self.lab.agents = Agents(bench.cluster, world.store(CHECKPOINT_BACKUPS), self.lab.registry, now)
        world.add(played_by(world, "cloud", PROVISIONED_INSTANCES, self.lab.cloud))
        world.add(played_by(world, "agents", CHECKPOINT_BACKUPS, self.lab.agents))
        self._world, self._world_running = world, asyncio.create_task(world.run())
        self._keeping = asyncio.create_task(self._keep_running(first))

    async def stop(self) -> None:
        self._world.stop()
        self._keeping.cancel()
        await asyncio.wait([self._world_running, self._keeping])

    async def _keep_running(self, first: Cluster) -> None:
        cluster: Cluster = first
        while True:
            operator = Operator(cluster, identity="test", now=now, random=Random(0), metrics=Metrics())
            operator.add(
                spot_instance_job_controller(
                    operator,
                    cluster,
                    defaults=DEFAULTS,
                    now=now,
                    pools=MachinePools(lambda: 0.0),
                    repository=self.lab.registry,
                )
            )
            try:
                await operator.run()
            except NotLeading:
                cluster = self.bench.cluster
                await asyncio.sleep(RESTARTED_AFTER_S)

    async def _add_node(self, name: str, labels: dict[str, str]) -> None:
        await self.bench.add_node(name, gpus=1, labels={POOL: NAMESPACE, **labels})

    async def end_replica(self, job: str) -> None:
        for pod in await self.bench.pods():
            if pod.metadata.controller is not None and pod.metadata.controller.name == job:
                await self.bench.end(pod)


@asynccontextmanager
async def a_bench(at: int, *, after: bool) -> AsyncIterator[SpotBench]:
    async with a_cluster() as bench:
        spot = SpotBench(bench, CrashingCluster(bench.cluster, at, after=after))
        try:
            yield spot
        finally:
            await spot.stop()


async def story(spot: SpotBench) -> SeenSpotJob:
    """From apply to success: one machine is taken back, then both, the last with nobody left to save."""
    lab = spot.lab
    await lab.apply_manifests(checkpoints={"checkpointInterval": "10m"})
    await lab.until_running()
    await _until_saved(lab)
    await lab.cloud.notice(lab.key("my-training-job-r0-0-m0"))
    await lab.until_attempt(0, 1)
    await lab.machines(lambda found: len(found) == 2)
    for name in ("my-training-job-r0-1-m0", "my-training-job-r1-0-m0"):
        lab.agents.holds = True  # who is to save is taken away, too
        await lab.cloud.preempt(lab.key(name))
    await asyncio.sleep(60)
    for key in await lab.backups_under_way():
        await lab.agents.fail(key, "PodGone", "its pod was gone before it was saved")
    lab.agents.holds = False
    await lab.until_attempt(0, 2)
    await lab.until_attempt(1, 1)
    await lab.machines(lambda found: len(found) == 2)
    await spot.end_replica("my-training-job-r1-1")
    done = await lab.until_phase("Succeeded")
    await lab.machines(lambda found: not found)
    return done


async def _until_saved(lab: SpotLab) -> None:
    for _ in range(30):
        if (await lab.get()).status.last_checkpoint_image:
            return
        await asyncio.sleep(60)
    raise AssertionError("never saved")


async def told(at: int, *, after: bool) -> bool:
    """Whether the operator lived to reach the write number `at`."""
    point = f"{'after' if after else 'before'} write {at}"
    async with a_bench(at, after=after) as spot:
        done = await story(spot)
        assert len(set(spot.lab.cloud.launched)) == 5, (point, spot.lab.cloud.launched)
        restarts = done.status.restarts
        assert restarts is not None, point
        assert (restarts.preemption, restarts.infrastructure, restarts.application) == (3, 0, 0), point
        assert [each.source for each in done.status.recoveries] == ["survivor", "repository", "repository"], point
        assert [each.phase for each in done.status.job_statuses] == ["Stopped", "Succeeded"], point
        assert spot.lab.cloud.nodes == set(), point
        left = {job.metadata.name for job in (await spot.lab.jobs()).values()}
        assert left == {"my-training-job-r1-1"}, (point, left)
        return spot.first.has_crashed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whichever_write_the_operator_dies_at_the_story_ends_the_same(after: bool) -> None:
    @virtual
    async def each_write() -> None:
        writes = 0
        while await told(writes + 1, after=after):
            writes += 1
            assert writes < TOO_MANY_WRITES
        assert writes >= 60  # as many as the undisturbed story has

    each_write()
