"""Clocks that stand still until a test sets them: the one on the wall, and the one that nobody sets."""

from datetime import UTC, datetime, timedelta


class HandClock:
    def __init__(self) -> None:
        self.wall = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
        self.passed_s = 1000.0

    def now(self) -> datetime:
        return self.wall

    def clock(self) -> float:
        return self.passed_s

    def advance(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.passed_s += seconds
