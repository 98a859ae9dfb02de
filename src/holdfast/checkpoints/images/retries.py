"""How long to wait before a registry is asked again, and when that is over."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from holdfast.checkpoints.images.errors import RegistryUnreachable

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class TemporaryFailure(Exception):
    """What may go well the next time. progressed: something was achieved, so the pauses start small again."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None, progressed: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.progressed = progressed


class RetryTiming(NamedTuple):
    """Where time and chance come from. deadline_s: by this clock, when nothing is tried any more.

    idle_s: how long a registry may be silent before the connection counts as broken.
    """

    deadline_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = lambda: 0.5
    idle_s: float = 60.0

    @property
    def left_s(self) -> float:
        return self.deadline_s - self.clock()


class RetryPauses:
    """How long to wait after each failure in a row of attempts, until there is no time left for another."""

    def __init__(self, timing: RetryTiming, what: str, host: str) -> None:
        self._timing = timing
        self._what = what
        self._host = host
        self._tries = 0
        self._since_progress = 0

    def after(self, failure: TemporaryFailure) -> float:
        self._tries += 1
        self._since_progress = 0 if failure.progressed else self._since_progress + 1
        pause_s = failure.retry_after_s
        if not pause_s:
            grown_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._since_progress, 10))
            pause_s = grown_s * (0.5 + self._timing.chance() / 2)
        if pause_s >= self._timing.left_s:
            raise RegistryUnreachable(
                f"can't {self._what}: {failure} ({self._tries} tries, and no time is left for another after a pause of "
                f"{pause_s:.0f} s): look at the registry {self._host}, or give the run more time"
            ) from None
        return pause_s


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """In seconds, or as a date that is compared with the registry's own clock."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        at, now = (parsedate_to_datetime(text) for text in (value, headers.get("Date", "")))
        return max(0.0, (at - now).total_seconds())
    except (ValueError, TypeError):
        return None
