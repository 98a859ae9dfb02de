"""Since when silence means something."""

import asyncio
from contextlib import suppress

from holdfast.api.meta import Key
from holdfast.trainingjob.reports.inbox import ReceiverUptime
from tests.runtime.virtual import now_s, settled, virtual

JOB = Key("ml", "bert")


class Sleeper:
    """A clock that also counts the time for which the machine slept."""

    slept_s = 0.0

    def __call__(self) -> float:
        return now_s() + self.slept_s


async def stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@virtual
async def test_hearing_begins_when_the_server_does_and_goes_on() -> None:
    hearing = ReceiverUptime(now_s)
    began = now_s()
    listening = asyncio.create_task(hearing.run())
    await asyncio.sleep(60)
    assert hearing.since_s(JOB) == began
    await stopped(listening)


@virtual
async def test_a_report_that_could_not_be_taken_begins_it_anew() -> None:
    hearing = ReceiverUptime(now_s)
    await asyncio.sleep(10)
    hearing.reset()
    assert hearing.since_s(JOB) == now_s()


@virtual
async def test_a_process_that_stood_still_begins_anew() -> None:
    clock = Sleeper()
    hearing = ReceiverUptime(clock)
    listening = asyncio.create_task(hearing.run())
    await settled()
    clock.slept_s = 4.0
    await asyncio.sleep(2)
    began = clock() - 4.0 - 2
    assert hearing.since_s(JOB) == began  # a little late is late, not deaf
    clock.slept_s = 64.0
    await asyncio.sleep(2)
    assert hearing.since_s(JOB) > began + 60
    await stopped(listening)
