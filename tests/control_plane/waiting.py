"""Waiting for a condition, with an end to it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(
    look: Callable[[], Awaitable[T]], enough: Callable[[T], bool], *, what: str, within_s: float = 120.0
) -> T:
    """Look again and again until what is seen is enough; fail saying what was waited for and what was seen last."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        seen = await look()
        if enough(seen):
            return seen
        assert loop.time() < deadline, f"not within {within_s:.0f} s: {what}; last seen: {seen}"
        await asyncio.sleep(0.05)
