"""Several writes at the same time."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather_all(steps: Iterable[Awaitable[T]]) -> list[T]:
    """All are carried out, even when one fails; then the first failure is raised."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
