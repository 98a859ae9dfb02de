"""How long a Job waits after failed pods before it makes another."""

from collections.abc import Sequence
from datetime import datetime

from holdfast.plane.jobs.standing import failures_before, finished_at, ignored_failures_before
from holdfast.plane.objects import Pod

BASE_S = 10.0
CAP_S = 600.0


def backoff_remaining_s(succeeded: Sequence[Pod], failed: Sequence[Pod], now: datetime) -> float:
    """Counted from the last failure; a success starts the series anew."""
    last_success = max(map(finished_at, succeeded), default=None)
    failures = [at for at in map(finished_at, failed) if last_success is None or at > last_success]
    return _left_s(len(failures), max(failures), now) if failures else 0.0


def remaining_of_index_s(last: Pod | None, now: datetime) -> float:
    """The same for an index that fails on its own; each of its pods knows how many came before."""
    if last is None:
        return 0.0
    return _left_s(failures_before(last) + ignored_failures_before(last) + 1, finished_at(last), now)


def _left_s(failures: int, last: datetime, now: datetime) -> float:
    delay_s = min(CAP_S, BASE_S * 2.0 ** min(failures - 1, 16))
    return max(0.0, delay_s - (now - last).total_seconds())
