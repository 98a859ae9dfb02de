"""Loops of which none ends another."""

import asyncio

from structlog.testing import capture_logs

from holdfast.sidecar.background import background_tasks, run_unless_stopped
from tests.sidecar.operators import until


async def test_a_loop_that_breaks_begins_anew_and_says_so() -> None:
    begun: list[int] = []

    async def breaking() -> None:
        begun.append(1)
        if len(begun) < 2:
            raise RuntimeError("a fault of ours")
        await asyncio.Event().wait()

    with capture_logs() as logged:
        async with background_tasks() as running:
            running.start(breaking)
            await until(lambda: len(begun) == 2)
    assert [line["event"] for line in logged] == ["an error in holdfast; it goes on"]


async def test_one_that_breaks_does_not_disturb_another() -> None:
    turns: list[int] = []

    async def breaking() -> None:
        raise RuntimeError("a fault of ours")

    async def going_on() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async with background_tasks() as running:
        running.start(breaking)
        running.start(going_on)
        await until(lambda: len(turns) > 100)


async def test_all_end_with_the_block() -> None:
    ended: list[str] = []

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async with background_tasks() as running:
        running.start(waiting)
        await asyncio.sleep(0)
    assert ended == ["ended"]


async def test_work_is_done_unless_a_stop_comes_first() -> None:
    stop = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)

    assert await run_unless_stopped(stop, work())
    waiting = asyncio.create_task(run_unless_stopped(stop, asyncio.sleep(3600)))
    await asyncio.sleep(0)
    stop.set()
    assert not await waiting
