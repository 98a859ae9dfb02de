"""What was reported and is not in a status yet, and who was heard when: in memory, until the controller takes it."""

from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.errors import HoldfastError
from holdfast.planning.trainingjob.heard import AttemptReports, record_report
from holdfast.planning.trainingjob.progress import next_write_at
from holdfast.reports.wire import WorkerReport
from holdfast.runtime.clocks import Now
from holdfast.runtime.informer import Informers

# Minutes of reports: when so many wait, no status can be written, and the sidecars keep the rest.
MAX_PENDING = 64


class InboxFull(HoldfastError):
    """Reports of a job arrive faster than its status can be written."""


class PendingReport(Struct, frozen=True):
    batch: WorkerReport
    received: datetime


class Inbox:
    """A source of news for the controller; `put` is the server's sink. `clock` also counts while the machine sleeps."""

    def __init__(self, *, now: Now, clock: Callable[[], float]) -> None:
        self._now = now
        self._clock = clock
        self._add: Callable[[Key], None] = lambda _: None
        self._letters: dict[Key, list[PendingReport]] = {}
        self._heard: dict[Key, AttemptReports] = {}
        self._written: dict[Key, datetime] = {}

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._add = add

    def put(self, job: Key, batch: WorkerReport) -> None:
        before = self.reports_of(job, batch.attempt)
        self._heard[job] = record_report(before, batch, self._clock())
        if before is None or batch.index not in before.workers:
            self._add(job)  # from now on it is missed when it falls silent
        if not (batch.progress or batch.checkpoints or batch.resumed):
            return
        letters = self._letters.setdefault(job, [])
        if len(letters) >= MAX_PENDING:
            raise InboxFull(f"{len(letters)} reports of {job} wait to be written: send this one again later")
        letters.append(PendingReport(batch, self._now()))
        self._add(job)

    def pending(self, job: Key) -> tuple[PendingReport, ...]:
        """In the order in which they came; they stay until they are settled."""
        return tuple(self._letters.get(job, ()))

    def due(self, job: Key, now: datetime) -> datetime | None:
        """When the letters of a job may be written; None when there are none."""
        return next_write_at(self._written.get(job), now) if job in self._letters else None

    def acknowledge(self, job: Key, letters: tuple[PendingReport, ...]) -> None:
        """These are in the status now."""
        if not letters:
            return  # the next ones must not wait for a write that was none
        self._written[job] = self._now()
        left = [letter for letter in self._letters.get(job, ()) if letter not in letters]
        if left:
            self._letters[job] = left
        else:
            self._letters.pop(job, None)

    def reports_of(self, job: Key, attempt: int) -> AttemptReports | None:
        heard = self._heard.get(job)
        return heard if heard is not None and heard.attempt == attempt else None

    def forget(self, job: Key) -> None:
        """It has ended, or is gone."""
        for each in (self._letters, self._heard, self._written):
            each.pop(job, None)
