"""Moments as metadata has them: RFC 3339, whole seconds, UTC."""

from datetime import UTC, datetime


def written(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(text: str) -> datetime:
    return datetime.fromisoformat(text)
