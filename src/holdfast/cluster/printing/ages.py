"""How long ago, as short as kubectl writes it: 45s, 3m20s, 5h, 12d."""

from datetime import UTC, datetime

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400
UNKNOWN = "<unknown>"


def age(timestamp: object, now: datetime) -> str:
    """How long `timestamp`, as objects carry it, is in the past."""
    moment = parse_optional_time(timestamp)
    return UNKNOWN if moment is None else short_duration(now.timestamp() - moment.timestamp())


def parse_optional_time(timestamp: object) -> datetime | None:
    """The moment, or None when it is none."""
    if not isinstance(timestamp, str) or not timestamp:
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def short_duration(seconds: float) -> str:
    """The longer, the coarser: a second unit only where it still says something."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    if whole < 2 * MINUTE:
        return f"{whole}s"
    if whole < 10 * MINUTE:
        return _two(whole, MINUTE, "m", 1, "s")
    if whole < 3 * HOUR:
        return f"{whole // MINUTE}m"
    if whole < 8 * HOUR:
        return _two(whole, HOUR, "h", MINUTE, "m")
    if whole < 2 * DAY:
        return f"{whole // HOUR}h"
    if whole < 8 * DAY:
        return _two(whole, DAY, "d", HOUR, "h")
    if whole < 2 * YEAR:
        return f"{whole // DAY}d"
    return _two(whole, YEAR, "y", DAY, "d") if whole < 8 * YEAR else f"{whole // YEAR}y"


def _two(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_unit}" + (f"{rest}{small_unit}" if rest else "")
