"""The whole story, and what it costs."""

from collections import Counter

from holdfast.api.spotinstancejob_status import Restarts
from tests.runtime.virtual import virtual
from tests.spot.story import LONG_PUSH_S, end_of, nothing_remains, one_is_preempted, story
from tests.spot.world import world

MACHINES_PER_NEED = {(0, 0): 1, (1, 0): 1, (0, 1): 1, (0, 2): 1, (1, 1): 1}


@virtual
async def test_two_replicas_run_after_two_inserts_and_two_joins() -> None:
    async with world() as it:
        await it.submit()
        await it.until_running(0, 0)
        assert it.engine.count("instances.insert") == 2
        assert len(it.computers.joins) == 2
        assert len({each.node for each in it.kubelets.live()}) == 2
        assert len({each.memory.born for each in it.kubelets.live()}) == 2, "each began from nothing"


@virtual
async def test_a_lost_replica_goes_on_from_the_memory_of_the_survivor() -> None:
    async with world() as it:
        await it.submit()
        await it.until_running(0, 0)
        await it.pass_time(100)
        await one_is_preempted(it)
        (recovery,) = (await it.job()).status.recoveries
        assert (recovery.replica, recovery.cause, recovery.source) == (0, "preemption", "survivor")
        assert it.engine.count("instances.insert") == 3


@virtual
async def test_when_both_are_lost_both_go_on_from_the_newest_image_of_the_registry() -> None:
    async with world() as it:
        it.agents.push_s = LONG_PUSH_S
        await it.submit()
        await it.until_running(0, 0)
        await it.until(lambda job: len(it.images.memories) >= 1, what="saved at its turn")
        await it.pass_time(60)
        it.preempt(0, 1)
        await it.until_running(1, 1)
        assert {each.memory for each in it.kubelets.live()} == {it.images.newest}
        assert {each.source for each in (await it.job()).status.recoveries} == {"repository"}


@virtual
async def test_the_story_ends_in_success_and_leaves_nothing() -> None:
    async with world() as it:
        await story(it)
        end = await end_of(it)
        assert end.restarts == Restarts(preemption=3)
        assert end.machines_per_need == MACHINES_PER_NEED
        assert sorted(source for *_, source in end.recoveries) == ["repository", "repository", "survivor"]
        await nothing_remains(it)


@virtual
async def test_the_story_costs_few_writes_and_calls() -> None:
    async with world() as it:
        await story(it)
        calls = Counter(each.method for each in it.engine.calls)
        lists = calls.pop("instances.aggregatedList")
        machines = len(it.engine.made)
        assert machines == 5
        assert calls.total() <= 8 * machines, calls
        assert (calls["instances.insert"], calls["instances.delete"]) == (5, 5)
        ran_s = it.engine.calls[-1].at_s - it.engine.calls[0].at_s
        assert lists <= ran_s / 15 + 10, "one list each 15 s, whatever there is"
        writes = [step for step in it.process.steps if step.split()[0] not in ("GET", "POST", "DELETE")]
        of_checkpoints = sum("checkpointbackups" in step for step in writes)
        assert len(writes) - of_checkpoints <= 25 * machines, Counter(writes)
