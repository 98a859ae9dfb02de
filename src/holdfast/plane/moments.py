"""Moments as objects carry them."""

from datetime import UTC, datetime


def moment(text: str) -> datetime:
    """RFC 3339; a time without a zone is taken as UTC."""
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
