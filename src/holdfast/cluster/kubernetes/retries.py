"""When a request that failed is tried again, and after how long."""

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

from msgspec import Struct


class RetryLimits(Struct, frozen=True, kw_only=True):
    """How long a caller waits for a server that asks for time, and for one that does not answer."""

    tries: int = 10
    total_wait_s: float = 60.0
    connection_tries: int = 4
    first_backoff_s: float = 0.1
    longest_backoff_s: float = 2.0


DEFAULT_PATIENCE = RetryLimits()


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """One attempt's end: the server's answer, or none (`status` 0)."""

    write: bool
    sent: bool
    final: bool = False
    status: int = 0
    retry_after_s: float | None = None


class RetrySchedule:
    """The waits of one request; None ends it."""

    def __init__(self, patience: RetryLimits, rng: Random) -> None:
        self._patience = patience
        self._rng = rng
        self._tries = 0
        self._waited_s = 0.0

    def next_wait_s(self, failure: FailedAttempt) -> float | None:
        self._tries += 1
        wait_s = self._wait_s(failure)
        if wait_s is None or self._waited_s + wait_s > self._patience.total_wait_s:
            return None
        self._waited_s += wait_s
        return wait_s

    def _wait_s(self, failure: FailedAttempt) -> float | None:
        if asked_to_wait(failure):
            if self._tries >= self._patience.tries:
                return None
            least_s = failure.retry_after_s if failure.retry_after_s is not None else self._backoff_s()
            # Never sooner than asked, and not all at once.
            return least_s + self._rng.uniform(0, max(least_s, 1.0) * 0.25)
        if failure.status or failure.final or (failure.write and failure.sent):
            return None
        if self._tries >= self._patience.connection_tries:
            return None
        return self._backoff_s() * self._rng.uniform(0.5, 1.0)

    def _backoff_s(self) -> float:
        doubled_s = self._patience.first_backoff_s * 2.0 ** (self._tries - 1)
        return min(doubled_s, self._patience.longest_backoff_s)


def asked_to_wait(failure: FailedAttempt) -> bool:
    """With 429, or 503 and Retry-After, the server says that it did nothing; with another 5xx only a read is safe."""
    if failure.status == 429:
        return True
    if failure.retry_after_s is None:
        return False
    return failure.status == 503 or (failure.status >= 500 and not failure.write)


def parse_retry_after(value: str | None, now: Callable[[], datetime]) -> float | None:
    """Seconds to wait, from a number or an HTTP date; what makes no sense counts as not said."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now()).total_seconds())
