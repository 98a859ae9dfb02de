"""Times and durations as Kubernetes and people write them."""

from datetime import UTC, datetime


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(timestamp: str) -> datetime:
    """RFC 3339. A time without a zone is taken as UTC."""
    parsed = datetime.fromisoformat(timestamp)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_duration(start: str, end: str) -> str:
    """The time between two timestamps with its two largest units: 45s, 3m20s, 2h13m, 4d6h."""
    seconds = max(0, int((parse_time(end) - parse_time(start)).total_seconds()))
    units = (("d", seconds // 86400), ("h", seconds // 3600 % 24), ("m", seconds // 60 % 60), ("s", seconds % 60))
    first = next((place for place, (_, amount) in enumerate(units) if amount), len(units) - 1)
    return "".join(f"{amount}{unit}" for unit, amount in units[first : first + 2] if amount) or "0s"


def next_try(at: datetime, seconds: float) -> str:
    """For a message that is written once: when the next try is, and how long after the failure."""
    minutes, rest = divmod(int(seconds), 60)
    parts = (f"{minutes} min" if minutes else "", f"{rest} s" if rest else "")
    wait = " ".join(filter(None, parts)) if seconds >= 120 else f"{int(seconds)} s"
    return f"next try at {format_time(at)}" + (f" (in {wait})" if int(seconds) > 0 else "")
