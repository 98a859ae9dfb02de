"""Many jobs at once lose many machines at once, and then as the event logs of real fleets say."""

import asyncio
from collections import Counter
from random import Random

import pytest

from tests.runtime.virtual import virtual
from tests.spot.world import NAMESPACE, SPOT_JOBS, ZONES, World, world
from tests.spotinstancejob.traces import LOGS, MachineEvent, events

WRITES = ("create", "replace", "patch", "patch_status", "delete")
MACHINE_KINDS = ("provisionedinstances", "spotinstancevms", "nodes", "secrets")
MACHINE_WRITES = 15
"""For one that goes and the one that comes: orders and their status, Nodes, tokens, and pods that nobody else ends."""
ALL_WRITES = 26
"""With the survivor's checkpoint, the next attempt, what brings its base image, and the status of the job."""


async def submit(it: World, jobs: int, **spec: object) -> None:
    it.engine.checks_answers = False
    for number in range(jobs):
        await it.submit(f"job{number}", **spec)  # type: ignore[arg-type]  # whatever a spec has


async def all_succeed(it: World, *, within_s: float) -> None:
    until = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < until:
        jobs = (await it.cluster.list(SPOT_JOBS, namespace=NAMESPACE)).items
        assert not [job.message for job in jobs if job.status.phase == "Failed"]
        if all(job.status.phase == "Succeeded" for job in jobs):
            break
        await it.pass_time(30)
    assert {job.status.phase for job in jobs} == {"Succeeded"}, [job.message for job in jobs]
    for job in jobs:
        restarts = job.status.restarts
        assert restarts is None or (restarts.application, restarts.out_of_memory) == (0, 0), "no backoffLimit is used"
    await it.until_clean()
    it.check()


def spent(steps: list[str]) -> Counter[str]:
    """Writes by kind."""
    return Counter(step.split()[1] for step in steps if step.split()[0] in WRITES)


@pytest.mark.parametrize("jobs", [20, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_half_of_all_machines_are_taken_back_at_once(jobs: int) -> None:
    @virtual
    async def storm() -> None:
        async with world() as it:
            it.kubelets.steps = 1200
            await submit(it, jobs)
            await it.wait_for(lambda: len(it.kubelets.live()) == 2 * jobs, "all replicas run")
            assert len(it.engine.made) == 2 * jobs
            await it.pass_time(100)
            steps, calls = len(it.process.steps), len(it.engine.calls)
            taken = Random(1).sample(list(it.engine.machines.values()), jobs)
            for machine in taken:
                it.engine.preempt(machine)
            await it.wait_for(lambda: not {each.name for each in taken} & it.computers.on, "they are off")
            await it.wait_for(lambda: len(it.kubelets.live()) == 2 * jobs, "all replicas run again")
            await it.wait_for(lambda: len(it.engine.machines) == 2 * jobs, "the old ones are gone")
            await it.pass_time(10)
            writes = spent(it.process.steps[steps:])
            done = Counter(it.process.steps[steps:])
            lost_pods = done["delete pods"] - done["create pods"]
            of_machines = sum(writes[kind] for kind in MACHINE_KINDS) + lost_pods
            assert of_machines <= MACHINE_WRITES * jobs, writes
            assert writes.total() <= ALL_WRITES * jobs, writes
            methods = Counter(call.method for call in it.engine.calls[calls:])
            assert methods.total() <= 8 * jobs, methods
            assert len(it.engine.made) == 3 * jobs, "one for each that was taken"
            await all_succeed(it, within_s=3600)
            assert set(it.history.machines_per_need.values()) == {1}

    storm()


class Fleet:
    """As many machines as the log has at each moment; one that goes there takes one of ours with it."""

    def __init__(self, it: World, jobs: int, log: str) -> None:
        self._it = it
        self._events: list[MachineEvent] = events(log)
        first = [event for event in self._events if event.kind == "add"]
        self._random = Random(len(first))
        self._size = 0
        self._largest = max(self._sizes())
        self._jobs = jobs
        self.taken = 0

    def _sizes(self) -> list[int]:
        sizes, size = [], 0
        for event in self._events:
            size += 1 if event.kind == "add" else -1
            sizes.append(size)
        return sizes

    async def follow(self) -> None:
        began_s = asyncio.get_running_loop().time()
        for event in self._events:
            await asyncio.sleep(max(0.0, began_s + event.at_s - asyncio.get_running_loop().time()))
            before, self._size = self._size, self._size + (1 if event.kind == "add" else -1)
            # There is room for all jobs when the fleet is at its largest.
            capacity = max(2, round(2 * self._jobs * self._size / self._largest))
            self._it.engine.supply.capacity = {ZONES[0]: capacity // 2, ZONES[1]: capacity - capacity // 2}
            running = [each for each in self._it.engine.machines.values() if each.status == "RUNNING"]
            if self._size < before and running and self._random.random() < 2 * self._jobs / self._largest:
                self._it.engine.preempt(self._random.choice(running))
                self.taken += 1


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("jobs", [4, pytest.param(32, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_all_succeed_on_machines_that_come_and_go_as_in_a_real_fleet(log: str, jobs: int) -> None:
    @virtual
    async def day() -> None:
        async with world() as it:
            it.kubelets.steps = 3 * 3600
            fleet = Fleet(it, jobs, log)
            market = asyncio.create_task(fleet.follow())
            await it.pass_time(1000)
            await submit(it, jobs, checkpoints={"checkpointInterval": "20m"})
            await all_succeed(it, within_s=2 * 86400)
            market.cancel()
            assert fleet.taken >= 1
            living = [need for need, count in it.history.machines_per_need.items() if count]
            assert len({each.job for each in living}) == jobs

    day()
