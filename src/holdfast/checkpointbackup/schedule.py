"""When the runs of a schedule are due. Pure: the time comes in as an argument.

cronsim follows Debian's cron: at a clock change, a run at a fixed hour that is skipped happens right after the change,
and one whose hour comes twice happens once; runs of every hour or minute follow the real time.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from holdfast.api.checkpointbackup import IMMEDIATELY, CheckpointBackupSpec
from holdfast.errors import HoldfastError

NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Nobody needs the exact number beyond this; a run every minute reaches it in a week.
MOST_COUNTED = 10_000

_RANGE = re.compile(r"(\w+)-(\w+)")
# Python's own file names among the zones: they hold no zone.
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


class InvalidSchedule(HoldfastError):
    """No run can be computed from spec.schedule and spec.timeZone."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Schedule(Struct, frozen=True):
    """A cron expression in a zone. `parse_schedule` has checked both."""

    cron: str
    zone: tzinfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The moments after this one at which a run is due, in UTC, in order."""
        last = moment.astimezone(UTC)
        for local in CronSim(self.cron, last.astimezone(self.zone)):
            due = local.astimezone(UTC)
            # Within the hour that comes twice, a local time may mean the first of the two, which is over.
            if due > last:
                yield due
                last = due

    def next_after(self, moment: datetime) -> datetime:
        return next(self.after(moment))

    def count_due(self, after: datetime, until: datetime) -> int:
        """How many runs are due after the one moment and not after the other; at most MOST_COUNTED."""
        count = 0
        for due in islice(self.after(after), MOST_COUNTED):
            if due > until:
                break
            count += 1
        return count


def parse_schedule(spec: CheckpointBackupSpec) -> Schedule | None:
    """The schedule of a backup; None for one that runs once, at once. Raises `InvalidSchedule`."""
    return _parsed(spec.schedule, spec.time_zone)


@lru_cache(maxsize=1024)
def _parsed(text: str, time_zone: str | None) -> Schedule | None:
    zone = _zone(time_zone)
    if text == IMMEDIATELY:
        return None
    schedule = Schedule(NAMED.get(text, text), zone)
    try:
        # Any moment will do: cronsim looks 50 years ahead, and dates repeat within 40.
        schedule.next_after(datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidSchedule("InvalidSchedule", _refusal(text, str(error))) from error
    except StopIteration:
        raise InvalidSchedule("InvalidSchedule", _no_date(text)) from None
    return schedule


def _zone(name: str | None) -> tzinfo:
    if not name:
        return UTC
    try:
        if not _ZONE_NAME.fullmatch(name):
            raise ZoneInfoNotFoundError
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidSchedule(
            "UnknownTimeZone",
            f"spec.timeZone {name!a} is not a known zone: write a name of the tz database, such as Europe/Berlin",
        ) from None


def _refusal(text: str, error: str) -> str:
    """cronsim names the field; what is wrong with it is either a range, or a day that no month of it has."""
    field = error.removeprefix("Bad ")
    for first, last in _RANGE.findall(text):
        if _order(first) > _order(last):
            return (
                f"spec.schedule {text!a}: the {field} range {first}-{last} runs backwards; write its two parts, "
                "separated by a comma"
            )
    return _no_date(text)


def _no_date(text: str) -> str:
    return f"spec.schedule {text!a} fits no date: no month that it names has such a day"


def _order(value: str) -> int:
    """Where a value of a range stands in its field; names only ever stand with their likes or with numbers."""
    names = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
    months = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
    lower = value.lower()
    if lower in names:
        return names.index(lower)
    return months.index(lower) + 1 if lower in months else int(value)
