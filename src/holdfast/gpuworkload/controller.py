"""Takes a GPUWorkload to a node and follows it to the end: observe, decide, apply, status."""

from collections.abc import Iterator
from datetime import datetime
from random import SystemRandom

import structlog
from msgspec import structs

from holdfast.api.core.objects import Job
from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS, PODS
from holdfast.gpuworkload.apply import add_finalizer, ensure_job, finalize, with_job_problem
from holdfast.gpuworkload.decision import (
    Action,
    AssignNode,
    Finish,
    RetryAttempt,
    RunJob,
    Suspend,
    decide,
    expiry,
    requeue_at,
)
from holdfast.gpuworkload.metrics import GPUWorkloadMetrics, InstrumentedReconciler, events_for
from holdfast.gpuworkload.observe import Caches, NodeReadinessWatch, key_of
from holdfast.gpuworkload.placement_queue import PlacementQueue
from holdfast.gpuworkload.snapshot import TIMING, Observed, Timing, recheck_in_s
from holdfast.gpuworkload.status import next_status, reason_of
from holdfast.pods.template import Defaults
from holdfast.runtime.children import stop_jobs
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError, Watch, owned_by
from holdfast.runtime.events import Recorder
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.status import delete_expired, record_events, write_status
from holdfast.scheduling.free_gpus import RandomSource

# An obstacle (a name, a quota, a missing right) can't be watched, so it is checked this often.
OBSTACLE_RECHECK_S = 30.0

OWNER = owned_by(GPU_WORKLOADS)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class GPUWorkloadReconciler:
    """The reconciler of the kind."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        placement_queue: PlacementQueue,
        writer: WriteTracker,
        events: Recorder,
        metrics: GPUWorkloadMetrics,
        *,
        defaults: Defaults,
        timing: Timing,
        now: Now,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._placement_queue = placement_queue
        self._writer = writer
        self._events = events
        self._metrics = metrics
        self._defaults = defaults
        self._timing = timing
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        now, observed = self._now(), self._caches.observe(key)
        if observed is None:
            return Done()
        if observed.workload.metadata.deletion_timestamp:
            return await finalize(self._writer.for_key(key), observed, now, self._timing)
        observed, refresh_in_s = self._placement_queue.refresh(observed, now)
        observed = await with_job_problem(observed, self._cluster)
        action = decide(observed, now, self._timing)
        observed = await self._apply(action, observed, now)
        return await self._requeue(observed, now, refresh_in_s)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        observed = self._caches.observe(key)
        if observed is not None and not observed.finished:
            refused, now = structs.replace(observed, rejected_reason=str(error)), self._now()
            await self._with_status(refused, decide(refused, now, self._timing), now)

    async def _apply(self, action: Action, observed: Observed, now: datetime) -> Observed:
        """Status has the decision before it is carried out: after a crash the next reconcile carries it out."""
        session = self._writer.for_key(observed.workload.metadata.key)
        match action:
            case AssignNode():
                observed = structs.replace(observed, workload=await add_finalizer(session, observed.workload))
                observed = _in_next_attempt(await self._with_status(observed, action, now), observed.past_jobs)
                return await self._apply(RunJob(), observed, now)
            case Finish():
                return await self._with_status(observed, action, now)
            case RetryAttempt() | Suspend():
                observed = await self._with_status(observed, action, now)
                await stop_jobs(session, observed.jobs_to_delete)
                return observed
            case RunJob() if not observed.job_is_made:
                observed = await ensure_job(observed, self._cluster, session, self._defaults)
        await stop_jobs(session, observed.jobs_to_delete)
        return await self._with_status(observed, action, now)

    async def _with_status(self, observed: Observed, action: Action, now: datetime) -> Observed:
        """With the status that follows from the action. Nothing is written when nothing changed."""
        workload = await self._write_status(observed.workload, next_status(observed, action, now))
        return structs.replace(observed, workload=workload)

    async def _write_status(self, workload: GPUWorkload, status: GPUWorkloadStatus) -> GPUWorkload:
        session = self._writer.for_key(workload.metadata.key)
        written = await write_status(session, GPU_WORKLOADS, workload, workload.status, status)
        if written is None:
            return workload
        _log_step(workload, status)
        self._metrics.status_written(workload, status)
        record_events(self._events, GPU_WORKLOADS, workload, events_for(workload, status))
        return written

    async def _requeue(self, observed: Observed, now: datetime, refresh_in_s: float | None) -> Result:
        due = expiry(observed.workload) if observed.finished else None
        if due is not None and now >= due:
            await delete_expired(self._writer.for_key(observed.workload.metadata.key), GPU_WORKLOADS, observed.workload)
            return Done()
        soonest_s = min(self._requeue_times_s(observed, now, refresh_in_s), default=None)
        return RequeueAfter(soonest_s) if soonest_s is not None else Done()

    def _requeue_times_s(self, observed: Observed, now: datetime, refresh_in_s: float | None) -> Iterator[float]:
        wake = requeue_at(observed, now, self._timing)
        if wake is not None:
            yield (wake - now).total_seconds()
        if refresh_in_s is not None:
            yield refresh_in_s
        yield from recheck_in_s(observed, self._timing)
        if observed.blocked_by:
            yield OBSTACLE_RECHECK_S


def _in_next_attempt(observed: Observed, past_jobs: tuple[Job, ...]) -> Observed:
    """The observed Job and pods belong to an old attempt now."""
    old_pods = (*observed.old_pods, *observed.pods)
    return structs.replace(observed, job=None, old_jobs=past_jobs, pods=(), old_pods=old_pods)


def _log_step(workload: GPUWorkload, status: GPUWorkloadStatus) -> None:
    """Without the message: it may end with the program's last lines, which belong to the workload's user."""
    old = workload.status or GPUWorkloadStatus()
    is_step = (status.phase, reason_of(status)) != (old.phase, reason_of(old))
    write = log.info if is_step else log.debug
    key = str(workload.metadata.key)
    write("status", key=key, phase=status.phase, why=reason_of(status), node=status.assigned_node, job=status.job_name)


def gpu_workload_controller(
    operator: Operator,
    cluster: Cluster,
    *,
    defaults: Defaults,
    now: Now,
    timing: Timing = TIMING,
    room: SharedLedger | None = None,
    dice: RandomSource | None = None,
) -> Controller[GPUWorkload]:
    """The controller, on the operator's stores. All controllers of an operator share one ledger (`room`)."""
    writer = operator.writer()
    caches = Caches.of(operator)
    placement_queue = PlacementQueue(
        room or SharedLedger(operator),
        caches,
        behind=writer.is_cache_stale,
        defaults=defaults,
        timing=timing,
        now=now,
        random=dice or SystemRandom(),
    )
    metrics = GPUWorkloadMetrics(operator.registry)
    reconciler = GPUWorkloadReconciler(
        cluster, caches, placement_queue, writer, operator.recorder, metrics, defaults=defaults, timing=timing, now=now
    )
    return Controller(
        name="gpuworkload",
        resource=GPU_WORKLOADS,
        reconciler=InstrumentedReconciler(reconciler, metrics),
        writer=writer,
        watches=(Watch(JOBS, OWNER), Watch(PODS, key_of), NodeReadinessWatch(caches), placement_queue),
    )
