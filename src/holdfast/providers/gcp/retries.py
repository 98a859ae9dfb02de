"""Requests that may be sent again without doing anything twice are sent again after faults that pass."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from msgspec import Struct

from holdfast.providers.gcp.http import HttpResponse, NoAnswer

PASSING = frozenset((408, 500, 502, 503, 504))


class Patience(Struct, frozen=True, kw_only=True):
    attempts: int = 3
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    """Also of what a Retry-After asks for: a longer one is left to the caller."""


PATIENCE = Patience()


def retry_after_s(response: HttpResponse) -> float | None:
    """What the answer asks for, in seconds. Google sends no dates here."""
    text = response.headers.get("Retry-After", "").strip()
    return float(text) if text.isascii() and text.isdecimal() else None


async def persist(
    attempt: Callable[[], Awaitable[HttpResponse]], random: Random, patience: Patience = PATIENCE
) -> HttpResponse:
    """The first answer that is not a passing fault, or the last one; raises the last `NoAnswer`."""
    for made in range(1, patience.attempts + 1):
        is_last = made == patience.attempts
        asked_s: float | None = None
        try:
            response = await attempt()
        except NoAnswer:
            if is_last:
                raise
        else:
            asked_s = retry_after_s(response)
            if is_last or response.status not in PASSING or (asked_s or 0.0) > patience.longest_pause_s:
                return response
        pause_s = min(patience.first_pause_s * 2.0 ** (made - 1), patience.longest_pause_s)
        # Never earlier than the server asks, and not all at once.
        await asyncio.sleep(max(asked_s or 0.0, pause_s * random.uniform(0.5, 1.0)))
    raise AssertionError("the last attempt ends in an answer or an error")
