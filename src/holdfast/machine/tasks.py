"""Two shapes of waiting: for the first of several, and beside something that ends with the block."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any


async def wait_first(*awaitables: Awaitable[object]) -> None:
    """Until one of them is done. Coroutines are cancelled then; futures belong to the caller and go on."""
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    own = [task for task, given in zip(tasks, awaitables, strict=True) if task is not given]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(own)


@asynccontextmanager
async def background_task(coroutine: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run it beside the block, and no longer."""
    task = asyncio.ensure_future(coroutine)
    try:
        yield
    finally:
        await _end([task])


async def _end(tasks: "Sequence[asyncio.Future[object]]") -> None:
    """Cancel what still runs; an error of what had ended is the caller's to know."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
