"""Times and durations in the formats of Kubernetes, kubectl and Go."""

import re
from datetime import UTC, datetime


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds, as metav1.MicroTime is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(timestamp: str) -> datetime:
    """RFC 3339. A time without a zone is taken as UTC."""
    parsed = datetime.fromisoformat(timestamp)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_duration(start: str, end: str) -> str:
    """The time between two timestamps with its two largest units: 45s, 3m20s, 2h13m, 4d6h."""
    seconds = max(0, int((parse_time(end) - parse_time(start)).total_seconds()))
    units = (("d", seconds // 86400), ("h", seconds // 3600 % 24), ("m", seconds // 60 % 60), ("s", seconds % 60))
    first = next((index for index, (_, amount) in enumerate(units) if amount), len(units) - 1)
    return "".join(f"{amount}{unit}" for unit, amount in units[first : first + 2] if amount) or "0s"


def next_attempt(at: datetime, seconds: float) -> str:
    """For a message that is written once: when the next attempt is, and how long after the failure."""
    minutes, rest = divmod(int(seconds), 60)
    parts = (f"{minutes} min" if minutes else "", f"{rest} s" if rest else "")
    wait = " ".join(filter(None, parts)) if seconds >= 120 else f"{int(seconds)} s"
    return f"next try at {format_time(at)}" + (f" (in {wait})" if int(seconds) > 0 else "")


# Ages in the short form of kubectl: 45s, 3m20s, 5h, 12d.

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400
UNKNOWN = "<unknown>"


def age(timestamp: object, now: datetime) -> str:
    """The age of `timestamp`, a field of an object."""
    moment = parse_optional_time(timestamp)
    return UNKNOWN if moment is None else short_duration(now.timestamp() - moment.timestamp())


def parse_optional_time(timestamp: object) -> datetime | None:
    """The time, or None if the value is not a timestamp."""
    if not isinstance(timestamp, str) or not timestamp:
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def short_duration(seconds: float) -> str:
    """The longer the duration, the coarser: a second unit only where it still matters."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    if whole < 2 * MINUTE:
        return f"{whole}s"
    if whole < 10 * MINUTE:
        return _two_units(whole, MINUTE, "m", 1, "s")
    if whole < 3 * HOUR:
        return f"{whole // MINUTE}m"
    if whole < 8 * HOUR:
        return _two_units(whole, HOUR, "h", MINUTE, "m")
    if whole < 2 * DAY:
        return f"{whole // HOUR}h"
    if whole < 8 * DAY:
        return _two_units(whole, DAY, "d", HOUR, "h")
    if whole < 2 * YEAR:
        return f"{whole // DAY}d"
    return _two_units(whole, YEAR, "y", DAY, "d") if whole < 8 * YEAR else f"{whole // YEAR}y"


def _two_units(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_unit}" + (f"{rest}{small_unit}" if rest else "")


# Durations in Go's format: 90s, 1h30m, 1.5h.

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)", re.ASCII)


def is_duration(text: str) -> bool:
    return re.fullmatch(f"({_PART.pattern})+", text, re.ASCII) is not None


def parse_duration_s(text: str) -> float:
    """The duration in seconds; the text must be a duration."""
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
