"""Durations as Go writes them: 90s, 1h30m, 1.5h."""

import re

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)", re.ASCII)


def is_duration(text: str) -> bool:
    return re.fullmatch(f"({_PART.pattern})+", text, re.ASCII) is not None


def parse_duration_s(text: str) -> float:
    """How long that is; the text must be a duration."""
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
