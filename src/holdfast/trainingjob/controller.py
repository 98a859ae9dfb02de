"""Takes a TrainingJob to its workers and follows them to the end: observe, decide, apply, status."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial

from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    TRAINING_JOBS,
)
from holdfast.decisions import reason_of
from holdfast.pods.template import Defaults
from holdfast.runtime.controller import Controller, Done, NodeReadinessWatch, Result, Watch, owned_by
from holdfast.runtime.events import Recorder
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.reachability import Connect, try_connect
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.reconciler import EventMessage, InstrumentedReconciler, KindReconciler
from holdfast.trainingjob.apply import Applier
from holdfast.trainingjob.children import WorkerTemplates
from holdfast.trainingjob.decide.checkpoints import checkpoint_warnings
from holdfast.trainingjob.decide.decision import Action, StartNewAttempt, decide, requeue_at, with_due_reports
from holdfast.trainingjob.decide.restart import expiry
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobSnapshot, TrainingJobTiming
from holdfast.trainingjob.decide.status import differs_in_counts_only, next_status
from holdfast.trainingjob.gang_admission import GangAdmission
from holdfast.trainingjob.metrics import TrainingJobMetrics, events_for
from holdfast.trainingjob.node_leases import NODE_LEASES, NodeLeases
from holdfast.trainingjob.node_probes import NodeProbes
from holdfast.trainingjob.node_witnesses import NodeWitnesses
from holdfast.trainingjob.objects.job import refusal
from holdfast.trainingjob.observe import FreedStores, TrainingJobCaches, tensorboard_of, training_job_key
from holdfast.trainingjob.reports.receiver import ReportReceiver
from holdfast.trainingjob.start_problems import StartProblems, TensorBoardProblems
from holdfast.trainingjob.worker_logs import save_worker_logs, saving_worker_logs
from holdfast.trainingjob.worker_monitor import WorkerMonitor

OWNER = owned_by(TRAINING_JOBS)
CHILDREN = tuple(Watch(kind, OWNER) for kind in (CONFIG_MAPS, SERVICES, SERVICE_ACCOUNTS, DEPLOYMENTS, JOBS))


class UnwrittenCounts:
    """Until when the status of a job may lack counts that have changed.

    Within a state each wait is twice as long as the one before: where workers take long, as in a cluster under load, a
    write every few seconds would add to it.
    """

    def __init__(self, first_wait_s: float, longest_wait_s: float) -> None:
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        # By the stored status that lacks them: one whose write has failed is due at once.
        self._due: dict[Key, tuple[TrainingJobStatus, datetime]] = {}
        self._waits_s: dict[Key, float] = {}

    def can_wait(self, job: TrainingJob, status: TrainingJobStatus, now: datetime) -> bool:
        """Whether the counts in this status can go with a later write."""
        key, old = job.metadata.key, job.status
        if old == status:
            self._due.pop(key, None)
            return False
        if old is None or not differs_in_counts_only(old, status):
            self.forget(key)
            return False
        wait_s = self._waits_s.setdefault(key, self._first_wait_s)
        lacking, due = self._due.get(key, (None, now))
        if lacking != old:
            due = now + timedelta(seconds=wait_s)
            self._due[key] = old, due
        if now >= due:
            self._waits_s[key] = min(2 * wait_s, self._longest_wait_s)
        return now < due

    def due(self, key: Key, now: datetime) -> datetime | None:
        """When the counts that wait are to be written; None once they are due, and so are written or tried again."""
        _, due = self._due.get(key, (None, now))
        return due if due > now else None

    def forget(self, key: Key) -> None:
        self._due.pop(key, None)
        self._waits_s.pop(key, None)


class TrainingJobReconciler(KindReconciler[TrainingJob, TrainingJobStatus, TrainingJobSnapshot, Action]):
    """The reconciler of the kind. Children go with their owner, so a deleted job needs nothing."""

    def __init__(
        self,
        cluster: Cluster,
        caches: TrainingJobCaches,
        admission: GangAdmission,
        templates: WorkerTemplates,
        writer: WriteTracker,
        events: Recorder,
        metrics: TrainingJobMetrics,
        receiver: ReportReceiver,
        monitor: WorkerMonitor,
        *,
        defaults: Defaults,
        timing: TrainingJobTiming,
        now: Now,
    ) -> None:
        super().__init__(TRAINING_JOBS, caches.training_jobs, writer, events, metrics, now=now)
        self._cluster = cluster
        self._caches = caches
        self._admission = admission
        self._templates = templates
        self._receiver = receiver
        self._monitor = monitor
        self._defaults = defaults
        self._timing = timing
        self._explanations = StartProblems(cluster, timing)
        self._boards = TensorBoardProblems(caches.pods, events)
        self._counts = UnwrittenCounts(timing.counts_s, timing.counts_cap_s)

    async def observe(self, obj: TrainingJob, now: datetime) -> TrainingJobSnapshot:
        snapshot = structs.replace(self._caches.snapshot(obj), admission=self._admission.decision(obj))
        if snapshot.current_job is None:
            # A rule of the operator that forbids the job stops the next attempt, not one that was made before.
            snapshot = structs.replace(snapshot, rejected_reason=refusal(obj, self._defaults.forbidden))
        snapshot = await self._explanations.with_start_problems(snapshot, now)
        return self._monitor.with_reports(await self._monitor.with_liveness(snapshot, now), now)

    def decide(self, snapshot: TrainingJobSnapshot, now: datetime) -> tuple[Action, ...]:
        return (decide(snapshot, now, self._timing),)

    async def apply(self, action: Action, snapshot: TrainingJobSnapshot, now: datetime) -> TrainingJobSnapshot | None:
        snapshot = with_due_reports(snapshot, action)
        on_one_machine = self._defaults.shared_loopback
        if isinstance(action, StartNewAttempt):
            # Status gets the number of the attempt. The next reconcile stops the old attempt, then makes the new one:
            # a crash in between changes nothing, since the number is the only copy of the decision.
            if await self._is_suspended_by_queue(snapshot):
                return None
            await save_worker_logs(self._cluster, snapshot, action, on_one_machine=on_one_machine)
            return snapshot
        applier = Applier(
            snapshot,
            self._caches,
            self._cluster,
            self.session(snapshot.job.metadata.key),
            defaults=self._defaults,
            timing=self._timing,
            templates=self._templates,
            reports=self._receiver.endpoint_json,
        )
        async with saving_worker_logs(self._cluster, snapshot, action, on_one_machine=on_one_machine):
            return await applier.apply(action)

    def next_status(self, snapshot: TrainingJobSnapshot, action: Action, now: datetime) -> TrainingJobStatus:
        return next_status(snapshot, action, now)

    def write_can_wait(self, obj: TrainingJob, status: TrainingJobStatus, now: datetime) -> bool:
        return self._counts.can_wait(obj, status, now)

    def recorded(self, snapshot: TrainingJobSnapshot) -> None:
        key = snapshot.job.metadata.key
        self._monitor.acknowledge(key, snapshot.reports)
        for report in snapshot.reports:
            for warning in checkpoint_warnings(report.batch):
                self._events.warning(TRAINING_JOBS, snapshot.job, warning.reason, warning.message)
        self._boards.warn(snapshot.job)
        if snapshot.current_job is not None:
            self._templates.forget(key)
        if snapshot.finished:
            self._monitor.forget(key)

    async def end(self, key: Key, obj: TrainingJob | None, now: datetime) -> Result:
        for memory in (self._explanations, self._boards, self._monitor, self._templates, self._counts):
            memory.forget(key)
        return Done()

    def object_of(self, snapshot: TrainingJobSnapshot) -> TrainingJob:
        return snapshot.job

    def with_object(self, snapshot: TrainingJobSnapshot, obj: TrainingJob) -> TrainingJobSnapshot:
        return structs.replace(snapshot, job=obj)

    def events_for(self, obj: TrainingJob, status: TrainingJobStatus) -> Iterable[EventMessage]:
        return events_for(obj, status)

    def log_fields(self, status: TrainingJobStatus) -> Mapping[str, object]:
        return {"state": status.state, "attempt": status.restart_count, "why": reason_of(status)}

    def expiry(self, obj: TrainingJob) -> datetime | None:
        return expiry(obj)

    def requeue_in_s(self, snapshot: TrainingJobSnapshot, action: Action, now: datetime) -> Iterator[float]:
        if isinstance(action, StartNewAttempt):
            yield 0.0
            return
        for at in (
            requeue_at(snapshot, now, self._timing),
            self._explanations.next_check(snapshot, now),
            self._receiver.inbox.due(snapshot.job.metadata.key, now),
            self._counts.due(snapshot.job.metadata.key, now),
        ):
            if at is not None:
                yield (at - now).total_seconds()
        if (check_in_s := self._monitor.next_check_in_s(snapshot, now)) is not None:
            yield check_in_s

    async def _is_suspended_by_queue(self, snapshot: TrainingJobSnapshot) -> bool:
        """Kueue takes a job back by suspending its Job. The cache may show the deleted pods before the suspension."""
        if not snapshot.queued or snapshot.current_job is None:
            return False
        try:
            return (await self._cluster.get(JOBS, snapshot.current_job.metadata.key)).spec.suspend
        except NotFound:
            return False


def training_job_controller(
    operator: Operator,
    cluster: Cluster,
    *,
    defaults: Defaults,
    now: Now,
    timing: TrainingJobTiming = TIMING,
    receiver: ReportReceiver | None = None,
    ledger: SharedLedger | None = None,
    gang_admission: bool = True,
    per_job_metrics: bool = True,
    connect: Connect | None = try_connect,
) -> Controller[TrainingJob]:
    """The controller, on the operator's stores. All controllers of an operator share one ledger.

    Without a report receiver that serves, no worker reports. `connect` is how nodes of silent workers are asked.
    """
    receiver = receiver or ReportReceiver(now=now)
    witnesses = _node_witnesses(operator, cluster, connect, timing, receiver.clock)
    monitor, writer = WorkerMonitor(receiver, witnesses, timing), operator.writer()
    caches, templates = TrainingJobCaches.of(operator), WorkerTemplates(defaults, monitor.nodes_to_avoid)
    admission = GangAdmission.of(
        operator,
        shared_ledger=ledger or SharedLedger(operator),
        template=lambda job: templates.of(job).body,
        avoided=monitor.nodes_to_avoid,
        now=now,
        starvation_timeout_s=timing.starvation_timeout_s,
        per_namespace=timing.reservations_per_namespace,
        enabled=gang_admission,
    )
    utilization, store = monitor.gpu_utilization_percent, caches.training_jobs
    metrics = TrainingJobMetrics(
        operator.registry, store, per_job=per_job_metrics, now=now, gpu_utilization_percent=utilization
    )
    parts = (cluster, caches, admission, templates, writer, operator.recorder, metrics, receiver, monitor)
    reconciler = TrainingJobReconciler(*parts, defaults=defaults, timing=timing, now=now)
    pods = (Watch(PODS, training_job_key), Watch(PODS, tensorboard_of), NodeReadinessWatch(caches.keys_on_node))
    shared = Watch(SERVICES, caches.keys_that_share)
    return Controller(
        name="trainingjob",
        resource=TRAINING_JOBS,
        reconciler=InstrumentedReconciler(reconciler, metrics),
        writer=writer,
        watches=(*CHILDREN, shared, *pods, FreedStores(store), admission, receiver.inbox),
    )


def _node_witnesses(
    operator: Operator,
    cluster: Cluster,
    connect: Connect | None,
    timing: TrainingJobTiming,
    clock: Callable[[], float],
) -> NodeWitnesses:
    leases, probes = NodeLeases(cluster, clock, lambda: operator.renewed_s), NodeProbes(connect, clock)
    operator.add_leader_task(lambda: leases.run(partial(operator.reflector, LEASES, namespace=NODE_LEASES)))
    operator.add_leader_task(probes.run)
    return NodeWitnesses(leases, probes, timing, clock)
