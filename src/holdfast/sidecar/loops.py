"""What a sidecar does over and over, all at the same time. No error of one ends another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BackgroundTasks:
    """Loops that never end by themselves: what breaks one is logged, and it begins anew."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def keep_running(self, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_again(run)))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _again(run: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await run()
            return
        except Exception:
            # A sidecar that dies takes the training with it, whose probes it answers.
            log.exception("an error in holdfast; it goes on")
            await asyncio.sleep(RETRY_S)


@contextlib.asynccontextmanager
async def loops() -> AsyncIterator[BackgroundTasks]:
    """They run until the block ends."""
    running = BackgroundTasks()
    try:
        yield running
    finally:
        await running.end()


async def run_unless_stopped(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Whether the work was done before `stop` was set."""
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        await working
        return True
    working.cancel()
    return False
