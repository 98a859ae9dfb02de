"""Moments in the life of a job at which something else may happen."""

from collections.abc import Awaitable, Callable

from holdfast.api.machine_ends import status_of
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, JOBS
from tests.spot.world import World

Moment = Callable[[World], Awaitable[None]]


async def ordered(it: World) -> None:
    """Status names machines, and their objects are there."""
    await it.wait_for(lambda: it.history.needs, "machines are ordered")


async def being_made(it: World) -> None:
    await it.wait_for(lambda: it.engine.count("instances.insert") == 2, "the cloud was asked for machines")


async def booting(it: World) -> None:
    async def join() -> bool:
        return any(status_of(each).phase == "Join" for each in (await it.orders()).values())

    await it.wait_for(join, "machines join")


async def joined(it: World) -> None:
    await it.wait_for(lambda: it.computers.joins, "a machine has joined")


async def starting(it: World) -> None:
    async def made() -> bool:
        return bool(await it.listed(JOBS))

    await it.wait_for(made, "a Job is made")


async def running(it: World) -> None:
    await it.until_running(0, 0)
    await it.pass_time(20)


async def being_saved(it: World) -> None:
    await running(it)

    async def saving() -> bool:
        backups = await it.listed(CHECKPOINT_BACKUPS)
        return any(each.status is not None and each.status.phase == "Checkpointing" for each in backups)

    await it.wait_for(saving, "a checkpoint is taken")


async def saved(it: World) -> None:
    await running(it)
    await it.wait_for(lambda: it.images.memories, "a checkpoint was taken")
    await it.pass_time(30)


async def warned(it: World) -> None:
    """The notice of one machine."""
    await running(it)
    it.preempt(0)
    await it.pass_time(1)


async def recovering(it: World) -> None:
    """The lost one's next machine is made."""
    await warned(it)
    await it.wait_for(lambda: it.engine.count("instances.insert") == 3, "the next machine was asked for")


async def restoring(it: World) -> None:
    """The next machine has joined, and the next attempt is about to start."""
    await recovering(it)
    await it.wait_for(lambda: len(it.computers.joins) == 3, "the next machine has joined")


async def both_lost(it: World) -> None:
    await saved(it)
    it.preempt(0, 1)
    await it.pass_time(60)


MOMENTS: dict[str, Moment] = {
    each.__name__.replace("_", " "): each
    for each in (
        ordered,
        being_made,
        booting,
        joined,
        starting,
        running,
        being_saved,
        saved,
        warned,
        recovering,
        restoring,
        both_lost,
    )
}
