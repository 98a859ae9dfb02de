"""Which run of a backup is due, and which were missed. Pure: the time comes in as an argument.

status.nextCheckpointTime is all that is remembered: a moment of the schedule that no run has been begun for. It lies in
the past while a run is due and can't begin yet.
"""

from datetime import datetime, timedelta
from itertools import islice

from msgspec import Struct

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.checkpointbackup.schedule import Schedule
from holdfast.checkpointbackup.snapshot import SCHEDULED, condition_of, is_under_way, status_of
from holdfast.times import parse_optional_time

_SECOND = timedelta(seconds=1)


class DueRuns(Struct, frozen=True, kw_only=True):
    next: datetime | None = None
    """When the next run is due, or has been due since; None: no run follows."""
    is_due: bool = False
    missed: int = 0
    """Moments that no run of their own is begun for: skipped by the run under way, or one with the run that is due."""


def due_runs(backup: CheckpointBackup, schedule: Schedule | None, now: datetime) -> DueRuns:
    if backup.spec.suspend:
        return DueRuns()
    if schedule is None:
        return _once(backup, now)
    moment = _next_moment(backup, schedule, now)
    if is_under_way(backup):
        skipped = schedule.count_due(moment - _SECOND, now)
        return DueRuns(next=schedule.next_after(now) if skipped else moment, missed=skipped)
    if moment > now:
        return DueRuns(next=moment)
    return DueRuns(next=moment, is_due=True, missed=schedule.count_due(moment - _SECOND, now) - 1)


def _once(backup: CheckpointBackup, now: datetime) -> DueRuns:
    status = status_of(backup)
    if status.run:
        return DueRuns()
    since = parse_optional_time(status.next_checkpoint_time) or now
    return DueRuns(next=min(since, now), is_due=True)


def _next_moment(backup: CheckpointBackup, schedule: Schedule, now: datetime) -> datetime:
    """The moment that status names, if the schedule and the clock agree that it is the next."""
    status = status_of(backup)
    stored = parse_optional_time(status.next_checkpoint_time)
    if stored is None:
        return schedule.next_after(_anchor(backup, now))
    is_of_schedule = schedule.next_after(stored - _SECOND) == stored
    if not is_of_schedule:
        return schedule.next_after(now)
    if stored <= now:
        return stored
    first, second = islice(schedule.after(now), 2)
    if stored <= second:
        return stored  # set back a little, the clock comes to a moment again whose run has begun
    # Either the schedule has become denser, or the clock was set back far. Then the first moment may come seconds after
    # the last run.
    return first if backup.metadata.generation != status.observed_generation else second


def _anchor(backup: CheckpointBackup, now: datetime) -> datetime:
    """After which moment the first run of a schedule is due: its creation, or now if something held it up."""
    created, status = parse_optional_time(backup.metadata.creation_timestamp), status_of(backup)
    scheduled = condition_of(status, SCHEDULED)
    if created is None or status.run or (scheduled is not None and scheduled.status == "False"):
        return now
    return min(created, now)
