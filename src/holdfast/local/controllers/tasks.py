"""Concurrent writes."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather_all(steps: Iterable[Awaitable[T]]) -> list[T]:
    """Run all steps to the end, even when one fails; then raise the first error."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
