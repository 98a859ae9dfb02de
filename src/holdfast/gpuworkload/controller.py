"""Takes a GPUWorkload to a node and follows it to the end: observe, decide, apply, status."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from random import SystemRandom

from msgspec import structs

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS, PODS
from holdfast.decisions import Finish, reason_of
from holdfast.gpuworkload.apply import add_finalizer, ensure_job, finalize, with_job_problem
from holdfast.gpuworkload.decision import (
    Action,
    AssignNode,
    RetryAttempt,
    RunJob,
    Suspend,
    decide,
    expiry,
    requeue_at,
    steps,
)
from holdfast.gpuworkload.metrics import GPUWorkloadGauges, GPUWorkloadMetrics, events_for
from holdfast.gpuworkload.observe import GPUWorkloadCaches, key_of
from holdfast.gpuworkload.placement_queue import PlacementQueue
from holdfast.gpuworkload.snapshot import TIMING, GPUWorkloadSnapshot, GPUWorkloadTiming, recheck_in_s, with_workload
from holdfast.gpuworkload.status import next_status
from holdfast.pods.template import Defaults
from holdfast.runtime.children import stop_jobs
from holdfast.runtime.controller import Controller, Done, NodeReadinessWatch, Result, Watch, owned_by
from holdfast.runtime.events import Recorder
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.reconciler import EventMessage, InstrumentedReconciler, KindReconciler
from holdfast.scheduling.free_gpus import RandomSource

OWNER = owned_by(GPU_WORKLOADS)


class GPUWorkloadReconciler(KindReconciler[GPUWorkload, GPUWorkloadStatus, GPUWorkloadSnapshot, Action]):
    """The reconciler of the kind. A deleted workload is gone only when its pods are gone."""

    def __init__(
        self,
        cluster: Cluster,
        caches: GPUWorkloadCaches,
        placement_queue: PlacementQueue,
        writer: WriteTracker,
        events: Recorder,
        metrics: GPUWorkloadMetrics,
        *,
        defaults: Defaults,
        timing: GPUWorkloadTiming,
        now: Now,
    ) -> None:
        super().__init__(GPU_WORKLOADS, caches.workloads, writer, events, metrics, now=now)
        self._cluster = cluster
        self._caches = caches
        self._placement_queue = placement_queue
        self._defaults = defaults
        self._timing = timing

    async def observe(self, obj: GPUWorkload, now: datetime) -> GPUWorkloadSnapshot:
        snapshot, ask_again_s = self._placement_queue.refresh(self._caches.snapshot(obj), now)
        return await with_job_problem(structs.replace(snapshot, ask_again_s=ask_again_s), self._cluster)

    def decide(self, snapshot: GPUWorkloadSnapshot, now: datetime) -> tuple[Action, ...]:
        return steps(decide(snapshot, now, self._timing))

    async def apply(self, action: Action, snapshot: GPUWorkloadSnapshot, now: datetime) -> GPUWorkloadSnapshot:
        session = self.session(snapshot.workload.metadata.key)
        match action:
            case AssignNode():
                return structs.replace(snapshot, workload=await add_finalizer(session, snapshot.workload))
            case Finish() | RetryAttempt() | Suspend():
                return snapshot  # status first
            case RunJob() if not snapshot.job_is_made:
                snapshot = await ensure_job(snapshot, self._cluster, session, self._defaults)
        await stop_jobs(session, snapshot.jobs_to_delete)
        return snapshot

    def next_status(self, snapshot: GPUWorkloadSnapshot, action: Action, now: datetime) -> GPUWorkloadStatus:
        return next_status(snapshot, action, now)

    async def end(self, key: Key, obj: GPUWorkload | None, now: datetime) -> Result:
        if obj is None:
            return Done()
        return await finalize(self.session(key), self._caches.snapshot(obj), now, self._timing)

    def object_of(self, snapshot: GPUWorkloadSnapshot) -> GPUWorkload:
        return snapshot.workload

    def with_object(self, snapshot: GPUWorkloadSnapshot, obj: GPUWorkload) -> GPUWorkloadSnapshot:
        return with_workload(snapshot, obj)

    def events_for(self, obj: GPUWorkload, status: GPUWorkloadStatus) -> Iterable[EventMessage]:
        return events_for(obj, status)

    def log_fields(self, status: GPUWorkloadStatus) -> Mapping[str, object]:
        return {
            "phase": status.phase,
            "why": reason_of(status),
            "node": status.assigned_node,
            "job": status.job_name,
        }

    def expiry(self, obj: GPUWorkload) -> datetime | None:
        return expiry(obj)

    def requeue_in_s(self, snapshot: GPUWorkloadSnapshot, action: Action, now: datetime) -> Iterator[float]:
        due = requeue_at(snapshot, now, self._timing)
        if due is not None:
            yield (due - now).total_seconds()
        if snapshot.ask_again_s is not None:
            yield snapshot.ask_again_s
        yield from recheck_in_s(snapshot, self._timing)


def gpu_workload_controller(
    operator: Operator,
    cluster: Cluster,
    *,
    defaults: Defaults,
    now: Now,
    timing: GPUWorkloadTiming = TIMING,
    ledger: SharedLedger | None = None,
    random: RandomSource | None = None,
) -> Controller[GPUWorkload]:
    """The controller, on the operator's stores. All controllers of an operator share one ledger."""
    writer = operator.writer()
    caches = GPUWorkloadCaches.of(operator)
    placement_queue = PlacementQueue(
        ledger or SharedLedger(operator),
        caches,
        behind=writer.is_cache_stale,
        defaults=defaults,
        timing=timing,
        now=now,
        random=random or SystemRandom(),
    )
    metrics = GPUWorkloadMetrics(operator.registry)
    GPUWorkloadGauges(operator.registry, operator.shown(caches.workloads.list), now=now)
    reconciler = GPUWorkloadReconciler(
        cluster, caches, placement_queue, writer, operator.recorder, metrics, defaults=defaults, timing=timing, now=now
    )
    return Controller(
        name="gpuworkload",
        resource=GPU_WORKLOADS,
        reconciler=InstrumentedReconciler(reconciler, metrics),
        writer=writer,
        watches=(Watch(JOBS, OWNER), Watch(PODS, key_of), NodeReadinessWatch(caches.keys_on_node), placement_queue),
    )
