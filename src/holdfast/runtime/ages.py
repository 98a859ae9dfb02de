"""How long something has lasted, as gauges tell it. What is unknown is None, and never 0."""

from collections.abc import Iterable
from datetime import datetime

from holdfast.api.meta import Condition
from holdfast.times import parse_optional_time


def transition(conditions: Iterable[Condition], kind: str, status: str) -> datetime | None:
    """Since when the condition has this status; None if it has another one, or none."""
    found = next((each for each in conditions if each.type == kind and each.status == status), None)
    return parse_optional_time(found.last_transition_time) if found is not None else None


def latest(*moments: datetime | None) -> datetime | None:
    return max((each for each in moments if each is not None), default=None)


def seconds_since(moment: datetime | None, now: datetime) -> float | None:
    """A clock that is behind makes no negative time."""
    return max(0.0, (now - moment).total_seconds()) if moment is not None else None


def unsaved_seconds(conditions: Iterable[Condition], last_checkpoint: str | None, now: datetime) -> float | None:
    """The training that a loss would cost now: since the last checkpoint, or since it runs. None while it does not."""
    running = transition(conditions, "Running", "True")
    if running is None:
        return None
    return seconds_since(latest(running, parse_optional_time(last_checkpoint)), now)
