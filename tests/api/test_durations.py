"""Durations as Go writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.times import is_duration, parse_duration_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("500ms", 0.5), ("1m1ms", 60.001), ("0s", 0)],
)
def test_units_add_up(text: str, expected: float) -> None:
    assert is_duration(text)
    assert parse_duration_s(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "5", "h", "1d", "1 h", "-1s", "1h30", "1.s", ".5s", "\u0661s"])
def test_anything_else_is_no_duration(text: str) -> None:
    assert not is_duration(text)


@given(st.integers(0, 999), st.integers(0, 59), st.integers(0, 59))
def test_hours_minutes_and_seconds_are_distinguished(hours: int, minutes: int, rest: int) -> None:
    assert parse_duration_s(f"{hours}h{minutes}m{rest}s") == hours * 3600 + minutes * 60 + rest
