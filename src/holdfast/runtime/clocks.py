"""The clocks of the real world. What must run in virtual time takes a clock as an argument instead."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

Now: TypeAlias = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def boottime_s() -> float:
    """Seconds that also pass while the process is stopped or the machine sleeps."""
    # CLOCK_MONOTONIC, which the event loop uses, stands still while a Linux machine is suspended.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def micro_time(moment: datetime) -> str:
    """As metav1.MicroTime is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_time(moment: datetime) -> str:
    """As metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
