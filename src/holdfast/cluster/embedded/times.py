"""Moments as metadata has them: RFC 3339, whole seconds, UTC."""

from datetime import UTC, datetime


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
