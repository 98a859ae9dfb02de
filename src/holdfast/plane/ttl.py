"""Takes finished Jobs away when their time is over."""

from datetime import timedelta

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Propagation
from holdfast.plane.objects import JOBS, Job
from holdfast.planning.times import parse_time
from holdfast.runtime.cache import Store
from holdfast.runtime.clocks import Now
from holdfast.runtime.controller import Controller
from holdfast.runtime.operator import Operator
from holdfast.runtime.result import Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.writes import WriteTracker


class JobTtlReconciler:
    def __init__(self, jobs: Store[Job], writer: WriteTracker, now: Now) -> None:
        self._jobs = jobs
        self._writer = writer
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        job = self._jobs.get(key)
        kept_s = job.spec.ttl_seconds_after_finished if job else None
        if job is None or kept_s is None or not job.finished_at or job.metadata.deletion_timestamp:
            return Done()
        left_s = (parse_time(job.finished_at) + timedelta(seconds=kept_s) - self._now()).total_seconds()
        if left_s > 0:
            return RequeueAfter(left_s)
        # Of the version looked at: a time that was lengthened in this moment is respected.
        meta = job.metadata
        session = self._writer.for_key(key)
        await session.delete(
            JOBS, key, uid=meta.uid, resource_version=meta.resource_version, propagation=Propagation.FOREGROUND
        )
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """Nothing here is final."""


def finished_jobs(operator: Operator, *, now: Now) -> Controller[Job]:
    writer = operator.writer()
    reconciler = JobTtlReconciler(operator.store(JOBS), writer, now)
    return Controller(name="job-ttl", resource=JOBS, reconciler=reconciler, writer=writer)
