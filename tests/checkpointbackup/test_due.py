"""Which run is due, and which were missed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.checkpointbackup.due import DueRuns, due_runs
from holdfast.checkpointbackup.schedule import parse_schedule
from holdfast.times import format_time, parse_time
from tests.checkpointbackup.backups import BEGUN, backup, scheduled
from tests.trainingjobs import at, stamp

HALF_HOUR = 1800
ENDED = {**BEGUN, "phase": "Completed"}


def due(it: CheckpointBackup, seconds: float) -> DueRuns:
    return due_runs(it, parse_schedule(it.spec), at(seconds))


def test_one_that_runs_once_is_due_at_once_and_then_never_again() -> None:
    assert due(backup(), 10) == DueRuns(next=at(10), is_due=True)
    assert due(backup(status={"nextCheckpointTime": stamp(10)}), 70) == DueRuns(next=at(10), is_due=True)
    assert due(backup(status=BEGUN), 70) == due(backup(status=ENDED), 70) == DueRuns()


def test_a_clock_that_is_set_back_does_not_hold_up_one_that_runs_once() -> None:
    assert due(backup(status={"nextCheckpointTime": stamp(3600)}), 70) == DueRuns(next=at(70), is_due=True)


CASES: list[tuple[str, dict[str, Any] | None, float, DueRuns]] = [
    # Made at -60 s: the first moment after that is second 0.
    ("first", None, -30, DueRuns(next=at(0))),
    ("first is due though nobody looked in time", None, 10, DueRuns(next=at(0), is_due=True)),
    ("waits", {"nextCheckpointTime": stamp(1800)}, 1799, DueRuns(next=at(1800))),
    ("is due", {"nextCheckpointTime": stamp(1800)}, 1800, DueRuns(next=at(1800), is_due=True)),
    ("missed two", {"nextCheckpointTime": stamp(1800)}, 5401, DueRuns(next=at(1800), is_due=True, missed=2)),
    ("under way", {**BEGUN, "nextCheckpointTime": stamp(1800)}, 1799, DueRuns(next=at(1800))),
    ("skipped", {**BEGUN, "nextCheckpointTime": stamp(1800)}, 1800, DueRuns(next=at(3600), missed=1)),
    ("skipped two", {**BEGUN, "nextCheckpointTime": stamp(1800)}, 3700, DueRuns(next=at(5400), missed=2)),
    # The clock is set back by seconds: the moment that was begun comes again, and is not begun twice.
    ("set back a little", {**ENDED, "nextCheckpointTime": stamp(3600)}, 1795, DueRuns(next=at(3600))),
    # By hours: nothing waits for hours.
    ("set back far", {**ENDED, "nextCheckpointTime": stamp(36000)}, 1795, DueRuns(next=at(3600))),
    # A moment that is none of the schedule's: the schedule was changed.
    ("changed", {**ENDED, "nextCheckpointTime": stamp(36001)}, 1795, DueRuns(next=at(1800))),
]


@pytest.mark.parametrize(("status", "seconds", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_the_next_run_of_a_schedule(status: dict[str, Any] | None, seconds: float, expected: DueRuns) -> None:
    assert due(scheduled(status=status), seconds) == expected


def test_a_schedule_that_has_become_denser_counts_from_now() -> None:
    sparse = {**ENDED, "nextCheckpointTime": stamp(86400), "observedGeneration": 2}
    assert due(scheduled(status=sparse), 10) == DueRuns(next=at(1800))


def test_nothing_is_due_and_nothing_is_missed_while_it_is_suspended() -> None:
    status = {**ENDED, "nextCheckpointTime": stamp(1800)}
    assert due(scheduled(status=status, suspend=True), 9000) == DueRuns()
    held = {
        "type": "Scheduled",
        "status": "False",
        "reason": "Suspended",
        "message": "",
        "lastTransitionTime": stamp(0),
    }
    for run in ({}, ENDED):
        assert due(scheduled(status={**run, "conditions": [held]}), 9000) == DueRuns(next=at(10800))


SCHEDULES = ("*/30 * * * *", "30 2 * * *", "0 */5 * * *", "15 1,2,3 * * *", "* * * * *", "0 0 29 2 *")
ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York")
MOMENTS = st.timedeltas(timedelta(0), timedelta(days=730)).map(lambda after: datetime(2026, 1, 1, tzinfo=UTC) + after)


@given(st.sampled_from(SCHEDULES), st.sampled_from(ZONES), MOMENTS, st.timedeltas(timedelta(0), timedelta(days=3)))
def test_the_stored_moment_is_found_again_by_whoever_looks_before_it(
    text: str, zone: str, created: datetime, later: timedelta
) -> None:
    """What status says is a moment of the schedule: a restart in between never computes another."""
    schedule = parse_schedule(scheduled(text, timeZone=zone).spec)
    assert schedule is not None
    stored = schedule.next_after(created)
    status = {**ENDED, "nextCheckpointTime": format_time(stored)}
    it = scheduled(text, status, timeZone=zone)
    found = due_runs(it, schedule, min(created + later, stored - timedelta(microseconds=1)))
    assert found.next is not None
    # A clock within two moments of the stored one agrees with it.
    assert found == DueRuns(next=stored)
    assert parse_time(format_time(found.next)) == found.next
