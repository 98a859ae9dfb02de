"""Waiting for a condition outside an event loop."""

import time
from collections.abc import Callable

WITHIN_S = 120.0


def until(seen: Callable[[], bool], what: str, *, within_s: float = WITHIN_S) -> None:
    """Look again and again; fail saying what was waited for."""
    deadline = time.monotonic() + within_s
    while not seen():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.1)
