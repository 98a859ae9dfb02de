"""Schedules over a year of virtual time: every run is begun once, and every one that is not is counted."""

from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest

from holdfast.api.checkpointbackup import CheckpointBackupSpec
from holdfast.checkpointbackup.schedule import parse_schedule
from tests.checkpointbackup.world import BackupWorld

START = datetime(2026, 1, 1, tzinfo=UTC) - timedelta(seconds=1)
YEAR_S = 365 * 86400.0


def moments(spec: CheckpointBackupSpec, start: datetime, end: datetime) -> list[datetime]:
    schedule = parse_schedule(spec)
    assert schedule is not None
    return list(takewhile(lambda moment: moment <= end, schedule.after(start)))


def test_every_half_hour_makes_17520_runs_in_a_year() -> None:
    world = BackupWorld(START, "*/30 * * * *")
    world.advance(YEAR_S)
    assert (len(world.begun), world.status.run, world.status.missed_runs) == (17520, 17520, 0)
    assert world.begun == moments(world.backup.spec, START, world.wall)
    # One write for each run, and the first word about the schedule.
    assert world.writes == {"BeginRun": 17520, "Idle": 1}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("schedule", ["15 */2 * * *", "30 2 * * *"])
def test_in_zones_whose_clocks_change_no_run_is_lost_or_begun_twice(zone: str, schedule: str) -> None:
    world = BackupWorld(START, schedule, timeZone=zone)
    world.advance(YEAR_S, each=lambda it: it.restart())
    assert world.begun == moments(world.backup.spec, START, world.wall)
    assert len(set(world.begun)) == len(world.begun) == world.status.run
    if schedule == "30 2 * * *":  # once a day, though the hour is skipped once and comes twice once
        assert len(world.begun) == 365


def test_runs_that_are_due_while_one_is_under_way_are_skipped_and_counted() -> None:
    world = BackupWorld(START, "* * * * *", run_s=150.0)
    world.advance(7 * 86400.0)
    assert world.status.run + world.status.missed_runs == 7 * 1440
    assert world.status.run == 7 * 480  # each takes two and a half minutes: every third minute


def test_several_missed_while_nobody_looked_become_one() -> None:
    world = BackupWorld(START + timedelta(minutes=10), "*/30 * * * *")
    world.advance(3600.0)
    before = world.status.run
    for _ in range(10):  # the operator is away for six hours, ten times
        world.wall += timedelta(hours=6)
        world.passed_s += 6 * 3600.0
        world.restart()
        world.advance(1.0)
        world.advance(1799.0)
    assert world.status.missed_runs == 10 * 11
    assert world.status.run - before == 10 * 2  # one for what was missed, one for the half hour after it


@pytest.mark.parametrize("back", [timedelta(seconds=7), timedelta(minutes=29), timedelta(hours=5), timedelta(days=400)])
def test_a_clock_that_is_set_back_begins_no_run_twice_and_stalls_none(back: timedelta) -> None:
    world = BackupWorld(START + timedelta(days=1), "*/30 * * * *")
    world.advance(6 * 3600.0 + 10)
    began_s = world.passed_s
    count = len(world.begun)
    world.wall -= back
    world.reconcile()
    assert len(world.begun) == count  # not at once, for a moment that it had already
    world.advance(86400.0)
    later = len(world.begun) - count
    # A day has 48 half hours; the clock may cost two of them.
    assert 46 <= later <= 48
    assert world.passed_s == began_s + 86400.0


def test_a_clock_that_is_set_back_in_the_middle_of_a_run_does_not_keep_it_from_its_deadline() -> None:
    world = BackupWorld(START, "*/30 * * * *", run_s=10_000.0)
    world.advance(5.0)
    assert world.status.run == 1
    world.wall -= timedelta(hours=3)
    world.advance(611.0)
    assert (world.status.phase, world.status.run) == ("Failed", 1)


def test_a_pod_that_is_away_for_a_while_costs_the_runs_that_it_is_away_for() -> None:
    world = BackupWorld(START, "*/30 * * * *")
    world.advance(3600.0)
    assert world.status.run == 2
    world.pod_runs = False
    world.advance(7200.0)
    # Each is waited for ten minutes.
    assert (world.status.run, world.status.phase) == (6, "Failed")
    world.pod_runs = True
    world.advance(7200.0)
    assert (world.status.run, world.status.phase, world.status.missed_runs) == (10, "Completed", 0)
    assert world.writes["FailDueRun"] == 4
