"""The whole story: two copies of a training start, lose their machines, are brought back, and one of them succeeds."""

from typing import NamedTuple

from holdfast.api.spotinstancejob_status import Cause, RecoverySource
from tests.spot.world import World

# Longer than a machine leaves after its notice: what is to be taken back is not saved any more.
LONG_PUSH_S = 30.0
STEPS = 1400.0


async def story(it: World) -> None:
    """From apply to success, with one machine taken back, and then both."""
    it.agents.push_s, it.kubelets.steps = LONG_PUSH_S, STEPS
    await it.submit()
    await it.until_running(0, 0)
    await it.pass_time(100)
    await one_is_preempted(it)
    await it.until(lambda job: _saved(it) >= 3, what="saved at its turn")
    await it.pass_time(60)
    await both_are_preempted(it)
    await it.until_phase("Succeeded")
    await it.until_clean()


def _saved(it: World) -> int:
    return len(it.images.memories)


async def one_is_preempted(it: World) -> None:
    born = it.training(1).memory.born
    it.preempt(0)
    await it.until_running(1, 0)
    restored = it.training(0)
    assert restored.memory.born == born, "it goes on from the survivor's memory"
    assert restored.memory.steps > 90


async def both_are_preempted(it: World) -> None:
    it.preempt(0, 1)
    await it.until_running(2, 1)
    for replica in (0, 1):
        assert it.training(replica).memory == it.images.newest


class End(NamedTuple):
    """What must be the same, whatever happened to the operator."""

    recoveries: list[tuple[int, Cause, RecoverySource]]
    attempts: list[int]
    machines_per_need: dict[tuple[int, int], int]
    restarts: object


async def end_of(it: World) -> End:
    it.check()
    status = (await it.job()).status
    return End(
        recoveries=sorted((each.replica, each.cause, each.source) for each in status.recoveries),
        attempts=[each.attempt for each in status.job_statuses],
        machines_per_need={(need.replica, need.attempt): n for need, n in it.history.machines_per_need.items()},
        restarts=status.restarts,
    )


async def nothing_remains(it: World) -> None:
    """Once the job is deleted, too."""
    assert not await it.leftovers()
    await it.delete()

    async def gone() -> bool:
        return not await it.objects()

    await it.wait_for(gone, "no object of the job is left")
    assert not await it.leftovers()
