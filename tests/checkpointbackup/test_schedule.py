"""When runs are due: a schedule, a zone and a moment → the next moments."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.api.checkpointbackup import CRON, NAMED_SCHEDULES, CheckpointBackupSpec
from holdfast.checkpointbackup.schedule import (
    MOST_COUNTED,
    NAMED,
    InvalidSchedule,
    Schedule,
    parse_schedule,
)
from holdfast.times import format_time, parse_time

BERLIN_SPRING = "2026-03-29T00:00:00Z"  # 02:00 → 03:00 at 01:00Z
BERLIN_AUTUMN = "2026-10-25T00:00:00Z"  # 03:00 → 02:00 at 01:00Z


def spec(schedule: str, **more: Any) -> CheckpointBackupSpec:
    body = {"schedule": schedule, "podRef": {"name": "p"}, "registry": {"url": "r.example", "repository": "c"}, **more}
    return msgspec.convert(body, CheckpointBackupSpec)


def schedule(text: str, zone: str | None = None) -> Schedule:
    found = parse_schedule(spec(text, timeZone=zone))
    assert found is not None
    return found


def due(text: str, after: str, count: int = 3, zone: str | None = None) -> list[str]:
    return [format_time(at) for at in islice(schedule(text, zone).after(parse_time(after)), count)]


def test_immediately_has_no_next_run() -> None:
    assert parse_schedule(spec("immediately")) is None


CASES = [
    ("*/30 * * * *", "2026-01-01T00:00:00Z", ["2026-01-01T00:30:00Z", "2026-01-01T01:00:00Z"]),
    ("*/30 * * * *", "2026-01-01T00:29:59Z", ["2026-01-01T00:30:00Z", "2026-01-01T01:00:00Z"]),
    ("@hourly", "2026-01-01T00:10:00Z", ["2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"]),
    ("@weekly", "2026-01-01T00:00:00Z", ["2026-01-04T00:00:00Z", "2026-01-11T00:00:00Z"]),
    ("@annually", "2026-01-01T00:00:00Z", ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
    ("0 0 29 2 *", "2026-01-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
    ("0 12 * JAN-Mar mon,FRI", "2026-01-01T00:00:00Z", ["2026-01-02T12:00:00Z", "2026-01-05T12:00:00Z"]),
    # Where neither field is a star, one of the two is enough.
    ("0 0 13 * 5", "2026-02-01T00:00:00Z", ["2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z"]),
]


@pytest.mark.parametrize(("text", "after", "expected"), CASES)
def test_the_next_runs_of_a_schedule_in_utc(text: str, after: str, expected: list[str]) -> None:
    assert due(text, after, 2) == expected


CLOCK_CHANGES = [
    # A fixed hour that is skipped: right after the change. One that comes twice: once.
    ("30 2 * * *", "Europe/Berlin", BERLIN_SPRING, ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
    ("30 2 * * *", "Europe/Berlin", BERLIN_AUTUMN, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
    ("0,30 2 * * *", "Europe/Berlin", BERLIN_SPRING, ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]),
    # Every hour follows the real time.
    ("0 * * * *", "Europe/Berlin", BERLIN_SPRING, ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]),
    ("0 * * * *", "Europe/Berlin", BERLIN_AUTUMN, ["2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"]),
    # From within the second of the two hours there is no way back to the first.
    ("45 2 * * *", "Europe/Berlin", "2026-10-25T01:40:00Z", ["2026-10-26T01:45:00Z", "2026-10-27T01:45:00Z"]),
    ("30 2 * * *", "America/New_York", "2026-03-08T06:00:00Z", ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]),
    # Half an hour, on the southern half of the globe.
    ("*/30 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30:00Z", ["2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"]),
    # The clock is set at midnight: the hour from 0 to 1 is skipped.
    ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00:00Z", ["2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"]),
    ("* * * * *", "Africa/Cairo", "2026-04-23T21:58:30Z", ["2026-04-23T21:59:00Z", "2026-04-23T22:00:00Z"]),
]


@pytest.mark.parametrize(("text", "zone", "after", "expected"), CLOCK_CHANGES)
def test_a_clock_change_neither_loses_nor_repeats_a_run(text: str, zone: str, after: str, expected: list[str]) -> None:
    assert due(text, after, 2, zone) == expected


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", None])
def test_a_year_of_half_hours_has_17520_runs(zone: str | None) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    year = schedule("*/30 * * * *", zone)
    found = list(islice(year.after(start), 17_520))
    assert found[-1] == start + timedelta(days=365)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=30)}


REFUSED = [
    ("0 0 30 2 *", None, "InvalidSchedule", "fits no date"),
    ("0 0 31 4,6,9,11 *", None, "InvalidSchedule", "fits no date"),
    ("0 0 31 2 */2", None, "InvalidSchedule", "fits no date"),
    ("30-10 * * * *", None, "InvalidSchedule", "minute range 30-10 runs backwards"),
    ("0 0 * * fri-Mon", None, "InvalidSchedule", "day-of-week range fri-Mon runs backwards"),
    ("0 0 * nov-feb *", None, "InvalidSchedule", "month range nov-feb runs backwards"),
    ("@daily", "Europe/Bielefeld", "UnknownTimeZone", "'Europe/Bielefeld' is not a known zone"),
    ("@daily", "../../etc/passwd", "UnknownTimeZone", "is not a known zone"),
    ("@daily", "Europe", "UnknownTimeZone", "is not a known zone"),
    ("immediately", "Mars/Olympus", "UnknownTimeZone", "is not a known zone"),
]


@pytest.mark.parametrize(("text", "zone", "reason", "message"), REFUSED)
def test_what_no_date_fits_is_refused_with_a_sentence(text: str, zone: str | None, reason: str, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message) as refused:
        parse_schedule(spec(text, timeZone=zone))
    assert refused.value.reason == reason


def test_every_name_of_the_schema_has_its_expression() -> None:
    assert set(NAMED) == {f"@{name}" for name in NAMED_SCHEDULES}


TEXTS = st.from_regex(f"(?i:{CRON})", fullmatch=True, alphabet=st.characters(max_codepoint=127))
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Cairo"])


@given(text=TEXTS, zone=ZONES, moment=MOMENTS)
def test_every_text_that_the_schema_accepts_is_computed_or_refused(
    text: str, zone: str | None, moment: datetime
) -> None:
    assume(len(text) <= 128)
    try:
        found = parse_schedule(spec(text, timeZone=zone))
    except InvalidSchedule as error:
        assert "runs backwards" in str(error) or "fits no date" in str(error)  # noqa: PT017
        return
    assert found is not None
    first, second = islice(found.after(moment), 2)
    assert moment < first < second
    # The same from any moment in between: whoever starts anew finds the same runs.
    assert found.next_after(first - timedelta(seconds=1)) == first
    assert found.next_after(first) == second


@given(text=st.sampled_from(["*/7 * * * *", "15 2 * * *", "30 */5 * * *"]), zone=ZONES, moment=MOMENTS)
def test_runs_are_counted_as_they_are_listed(text: str, zone: str | None, moment: datetime) -> None:
    found = schedule(text, zone)
    fifth = list(islice(found.after(moment), 5))[-1]
    assert found.count_due(moment, fifth) == 5
    assert found.count_due(moment, fifth - timedelta(seconds=1)) == 4


def test_a_count_has_an_end() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert schedule("* * * * *").count_due(start, start + timedelta(days=365)) == MOST_COUNTED
