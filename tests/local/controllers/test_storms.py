"""Everything at once, from a seed: pods that fail, machines that go silent or vanish, controllers that crash."""

import asyncio
from random import Random

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.resources import LEASES, NODES, PODS
from holdfast.local.controllers.job_pods import index_of
from holdfast.local.controllers.objects import JOBS, TemplatedJob
from tests.local.controllers.bench import LEASE_NAMESPACE, NAMESPACE, Bench, a_cluster, indexed
from tests.runtime.virtual import virtual

JOB_NAMES = [f"j-{number}" for number in range(4)]
WORKERS = 3
STORM_STEPS = 120
CALM_STEPS = 500


class Storm:
    def __init__(self, bench: Bench, random: Random) -> None:
        self._bench = bench
        self._random = random
        self._machines = 0
        self._silent: set[str] = set()

    async def begin(self) -> None:
        for _ in range(3):
            await self._new_machine()
        for name in JOB_NAMES:
            await self._bench.run_job(name, **indexed(WORKERS, backoffLimit=10**6))

    async def blow(self) -> None:
        match self._random.choices(["end", "crash", "cut", "vanish", "delete"], weights=[70, 6, 6, 3, 5])[0]:
            case "end":
                for pod in await self._running():
                    if self._random.random() < 0.3:
                        await self._bench.end(pod, self._random.choice([0, 0, 1]))
            case "crash":
                await self._bench.crash()
                self._bench.start()
                for name in await self._alive():
                    self._bench.revive(name)
            case "cut":
                await self._lose(await self._alive(), for_good=False)
            case "vanish":
                await self._lose(await self._alive(), for_good=True)
            case "delete":
                for pod in (await self._running())[:1]:
                    await self._bench.cluster.delete(PODS, pod.metadata.key)

    async def clear_up(self) -> None:
        """Machines that were only cut off come back: until then nobody knows what became of their pods."""
        there = {node.metadata.name for node in (await self._bench.cluster.list(NODES)).items}
        for name in sorted(self._silent & there):
            self._bench.revive(name)
            await self._bench.say_ready(name, "True")
        self._silent.clear()

    async def calm(self) -> None:
        """No more faults: what runs succeeds."""
        for pod in await self._running():
            await self._bench.end(pod)

    async def _running(self) -> list[Pod]:
        """Pods on machines that could tell of their end."""
        pods = await self._bench.pods()
        alive = await self._alive()
        return [pod for pod in pods if pod.status.phase == "Running" and pod.spec.node_name in alive]

    async def _alive(self) -> list[str]:
        names = (node.metadata.name for node in (await self._bench.cluster.list(NODES)).items)
        return [name for name in names if name not in self._silent]

    async def _lose(self, names: list[str], *, for_good: bool) -> None:
        if not names:
            return
        name = self._random.choice(names)
        self._silent.add(name)
        await self._bench.cut_off(name)
        if for_good:
            await self._bench.cluster.delete(LEASES, Key(LEASE_NAMESPACE, name))
            await self._bench.cluster.delete(NODES, Key("", name))
        await self._new_machine()

    async def _new_machine(self) -> None:
        self._machines += 1
        await self._bench.add_node(f"m-{self._machines}")


async def survivors(bench: Bench) -> list[TemplatedJob]:
    return [await bench.cluster.get(JOBS, Key(NAMESPACE, name)) for name in JOB_NAMES]


@pytest.mark.parametrize("seed", range(4))
def test_after_a_storm_every_job_is_complete_and_nothing_is_left_over(seed: int) -> None:
    @virtual
    async def weather() -> None:
        random = Random(seed)
        async with a_cluster() as bench:
            storm = Storm(bench, random)
            await storm.begin()
            for _ in range(STORM_STEPS):
                await asyncio.sleep(random.uniform(0, 20))
                await storm.blow()
                await check(bench)
            await storm.clear_up()
            for _ in range(CALM_STEPS):
                if all(job.finished_at for job in await survivors(bench)):
                    break
                await asyncio.sleep(5)
                await storm.calm()
            for job in await survivors(bench):
                status = job.status
                assert job.finished_at, job
                assert (status.completed_indexes, status.succeeded, status.active) == ("0-2", WORKERS, 0), job
            held = [pod.metadata.name for pod in await bench.pods() if pod.is_tracked]
            assert held == []

    weather()


async def check(bench: Bench) -> None:
    """At no moment do two pods of one index run for their Job."""
    there = set()
    for pod in await bench.pods():
        if not (pod.is_finished or pod.is_terminating):
            place = pod.metadata.labels["batch.kubernetes.io/job-name"], index_of(pod)
            assert place not in there
            there.add(place)
