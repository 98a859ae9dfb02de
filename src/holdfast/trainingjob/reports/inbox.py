"""Reports that are not in a status yet, and when each worker last reported; in memory, for the controller."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from holdfast.api.meta import Key
from holdfast.api.reports import WorkerReport
from holdfast.runtime.informer import Informers
from holdfast.runtime.process import Now
from holdfast.runtime.report_server import ReportsPending
from holdfast.trainingjob.decide.liveness import AttemptReports, record_report
from holdfast.trainingjob.decide.progress import next_write_at
from holdfast.trainingjob.decide.snapshot import PendingReport

# Minutes of reports: when so many are pending, status writes fail, and the sidecars retain further reports.
MAX_PENDING = 64


class InboxFull(ReportsPending):
    """Reports of a job arrive faster than its status can be written."""


class Inbox:
    """An event source of the controller; `put` is the server's sink. `clock` also counts while the host sleeps."""

    def __init__(self, *, now: Now, clock: Callable[[], float]) -> None:
        self._now = now
        self._clock = clock
        self._add: Callable[[Key], None] = lambda _: None
        self._pending: dict[Key, list[PendingReport]] = {}
        self._reports: dict[Key, AttemptReports] = {}
        self._last_writes: dict[Key, datetime] = {}

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._add = add

    def put(self, job: Key, batch: WorkerReport) -> None:
        before = self.reports_of(job, batch.attempt)
        self._reports[job] = record_report(before, batch, self._clock())
        if before is None or batch.index not in before.workers:
            self._add(job)  # from now on the worker is checked for missing reports
        if not (batch.progress or batch.checkpoints or batch.resumed):
            return
        pending = self._pending.setdefault(job, [])
        if len(pending) >= MAX_PENDING:
            raise InboxFull(f"{len(pending)} reports of {job} wait to be written: send this one again later")
        pending.append(PendingReport(batch, self._now()))
        self._add(job)

    def pending(self, job: Key) -> tuple[PendingReport, ...]:
        """The job's reports in order of arrival; they stay until they are acknowledged."""
        return tuple(self._pending.get(job, ()))

    def due(self, job: Key, now: datetime) -> datetime | None:
        """When the job's pending reports may be written to its status; None without reports."""
        return next_write_at(self._last_writes.get(job), now) if job in self._pending else None

    def acknowledge(self, job: Key, reports: tuple[PendingReport, ...]) -> None:
        """Drops reports that are in the status now."""
        if not reports:
            return  # without a write, the next reports must not be delayed
        self._last_writes[job] = self._now()
        remaining = [report for report in self._pending.get(job, ()) if report not in reports]
        if remaining:
            self._pending[job] = remaining
        else:
            self._pending.pop(job, None)

    def reports_of(self, job: Key, attempt: int) -> AttemptReports | None:
        reports = self._reports.get(job)
        return reports if reports is not None and reports.attempt == attempt else None

    def forget(self, job: Key) -> None:
        """The job has ended or was deleted."""
        for each in (self._pending, self._reports, self._last_writes):
            each.pop(job, None)


# Since when the operator can receive reports: only from then on do missing reports mean anything.

CHECK_S = 1.0
# An event loop that is this late was stopped, asleep or overloaded, and may have lost reports.
LATE_S = 5.0


class ReceiverUptime:
    """Since when reports arrive without interruption. `clock` also counts while the host sleeps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._since_s_by_job: dict[Key, float] = {}

    def since_s(self, job: Key) -> float:
        return max(self._since_s, self._since_s_by_job.get(job, 0.0))

    def reset(self, job: Key | None = None) -> None:
        """A report could not be received, because of the operator or the cluster.

        Without a job, missing reports of all jobs are excused: no request of an unknown client may cause that.
        """
        if job is not None:
            self._since_s_by_job[job] = self._clock()
        else:
            self._since_s = self._clock()

    def forget(self, job: Key) -> None:
        """The job has ended or was deleted."""
        self._since_s_by_job.pop(job, None)

    async def run(self) -> None:
        """Notices when this process itself was paused."""
        while True:
            before_s = self._clock()
            await asyncio.sleep(CHECK_S)
            if self._clock() - before_s > CHECK_S + LATE_S:
                self.reset()
