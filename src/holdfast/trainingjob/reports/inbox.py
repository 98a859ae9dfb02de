"""What was reported and is not in a status yet, and who was heard when: in memory, until the controller takes it."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.api.reports import WorkerReport
from holdfast.errors import HoldfastError
from holdfast.runtime.informer import Informers
from holdfast.runtime.process import Now
from holdfast.trainingjob.decide.liveness import AttemptReports, record_report
from holdfast.trainingjob.decide.progress import next_write_at

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


# Since when the operator has been able to hear: only from then on does a worker's silence mean anything.

CHECK_S = 1.0
# A loop that comes back so late was stopped, asleep or swamped, and reports may have been lost meanwhile.
LATE_S = 5.0


class ReceiverUptime:
    """`clock` also counts while the machine sleeps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._jobs: dict[Key, float] = {}

    def since_s(self, job: Key) -> float:
        return max(self._since_s, self._jobs.get(job, 0.0))

    def reset(self, job: Key | None = None) -> None:
        """A report could not be taken, for a reason that is ours or the cluster's.

        Without a job everybody is excused: nothing that a stranger sends may lead to that.
        """
        if job is not None:
            self._jobs[job] = self._clock()
        else:
            self._since_s = self._clock()

    def forget(self, job: Key) -> None:
        """The job has ended, or is gone."""
        self._jobs.pop(job, None)

    async def run(self) -> None:
        """Notices when this process itself stood still."""
        while True:
            before_s = self._clock()
            await asyncio.sleep(CHECK_S)
            if self._clock() - before_s > CHECK_S + LATE_S:
                self.reset()
