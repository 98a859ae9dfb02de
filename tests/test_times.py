"""Durations as people write them, and times as Kubernetes writes them."""

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import holdfast
from holdfast.times import format_duration, format_micro_time, format_time

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (45, "45s"),
        (60, "1m"),
        (200, "3m20s"),
        (3600, "1h"),
        (3605, "1h"),
        (7980, "2h13m"),
        (86400 * 4 + 3600 * 6 + 59, "4d6h"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: int, text: str) -> None:
    assert format_duration(format_time(START), format_time(START + timedelta(seconds=seconds))) == text


def test_a_timestamp_is_in_utc_with_whole_seconds() -> None:
    moment = datetime(2026, 1, 1, 2, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(moment) == "2026-01-01T00:00:00Z"


def test_a_timestamp_of_a_lease_has_microseconds() -> None:
    moment = datetime(2026, 1, 1, 2, 0, 0, 7, tzinfo=timezone(timedelta(hours=2)))
    assert format_micro_time(moment) == "2026-01-01T00:00:00.000007Z"


def test_no_other_module_formats_timestamps_by_itself() -> None:
    sources = Path(holdfast.__file__).parent
    formats = re.compile(r"%Y-%m-%dT%H:%M:%S")
    found = {str(path.relative_to(sources)) for path in sources.rglob("*.py") if formats.search(path.read_text())}
    assert found == {"times.py"}
