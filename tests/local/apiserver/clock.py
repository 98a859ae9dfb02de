"""A clock that a test sets."""

from datetime import UTC, datetime, timedelta


class Clock:
    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)
