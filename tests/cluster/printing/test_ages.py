"""How long ago, as kubectl writes it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.times import age, short_duration

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119.9, "119s"),
        (2 * MINUTE, "2m"),
        (2 * MINUTE + 5, "2m5s"),
        (10 * MINUTE + 5, "10m"),
        (179 * MINUTE, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 7 * MINUTE, "3h7m"),
        (8 * HOUR + 7 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (2 * DAY, "2d"),
        (2 * DAY + 3 * HOUR, "2d3h"),
        (8 * DAY + 3 * HOUR, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR + 3 * DAY, "2y3d"),
        (9 * YEAR + 3 * DAY, "9y"),
    ],
)
def test_a_span_is_as_short_as_kubectl_writes_it(seconds: float, expected: str) -> None:
    assert short_duration(seconds) == expected


@given(st.floats(min_value=0, max_value=1e10))
def test_a_span_is_always_short(seconds: float) -> None:
    assert 2 <= len(short_duration(seconds)) <= 7


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        ("2026-01-01T23:59:00Z", "60s"),
        ("2026-01-01T23:59:00.123456Z", "59s"),
        ("2026-01-02T00:59:00+01:00", "60s"),
        ("2026-01-01T23:59:00", "60s"),
        ("yesterday", "<unknown>"),
        ("", "<unknown>"),
        (None, "<unknown>"),
        (7, "<unknown>"),
    ],
)
def test_an_age_is_counted_from_a_timestamp(timestamp: object, expected: str) -> None:
    assert age(timestamp, NOW) == expected
