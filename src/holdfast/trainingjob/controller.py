"""Takes a TrainingJob to its workers and follows them to the end: observe, decide, apply, status."""

from datetime import datetime

import structlog
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS, PODS, SERVICE_ACCOUNTS, SERVICES, TRAINING_JOBS
from holdfast.pods.template import Defaults
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError, Watch, owned_by
from holdfast.runtime.events import Recorder
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.status import delete_expired, record_events, write_status
from holdfast.trainingjob.apply import Applier
from holdfast.trainingjob.decide.checkpoints import checkpoint_warnings
from holdfast.trainingjob.decide.decision import Action, StartNewAttempt, decide, requeue_at
from holdfast.trainingjob.decide.restart import expiry
from holdfast.trainingjob.decide.snapshot import TIMING, Observed, Timing
from holdfast.trainingjob.decide.status import next_status, reason_of
from holdfast.trainingjob.events import events_for
from holdfast.trainingjob.gang_admission import GangAdmission
from holdfast.trainingjob.metrics import InstrumentedReconciler, TrainingJobMetrics
from holdfast.trainingjob.objects.pod import pod_template, with_avoided_nodes
from holdfast.trainingjob.objects.security import refusal
from holdfast.trainingjob.observe import Caches, FreedStores, NodeReadinessWatch, tensorboard_of, training_job_key
from holdfast.trainingjob.reports.server import ReportReceiver
from holdfast.trainingjob.start_problems import StartProblems, TensorBoardProblems
from holdfast.trainingjob.worker_logs import save_worker_logs, saving_worker_logs
from holdfast.trainingjob.worker_monitor import WorkerMonitor

# An obstacle (a name, a quota, a missing right) can't be watched, so it is checked this often.
OBSTACLE_RECHECK_S = 30.0

OWNER = owned_by(TRAINING_JOBS)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class TrainingJobReconciler:
    """The reconciler of the kind."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        admission: GangAdmission,
        writer: WriteTracker,
        events: Recorder,
        metrics: TrainingJobMetrics,
        receiver: ReportReceiver,
        monitor: WorkerMonitor,
        *,
        defaults: Defaults,
        timing: Timing,
        now: Now,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._admission = admission
        self._writer = writer
        self._events = events
        self._metrics = metrics
        self._receiver = receiver
        self._monitor = monitor
        self._defaults = defaults
        self._timing = timing
        self._now = now
        self._explanations = StartProblems(cluster, timing)
        self._boards = TensorBoardProblems(caches.pods, events)

    async def reconcile(self, key: Key) -> Result:
        now = self._now()
        observed = await self._observe(key, now)
        if observed is None:
            return Done()
        observed = await self._record_reports(await self._monitor.with_liveness(observed, now), now)
        action = decide(observed, now, self._timing)
        if isinstance(action, StartNewAttempt):
            return await self._start_new_attempt(observed, action, now)
        observed = await self._apply(action, observed)
        job = await self._write_status(observed.job, next_status(observed, action, now))
        self._boards.warn(job)
        return await self._requeue(structs.replace(observed, job=job), now)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        now = self._now()
        observed = await self._observe(key, now)
        if observed is not None and not observed.finished:
            refused = structs.replace(observed, rejected_reason=str(error))
            await self._write_status(observed.job, next_status(refused, decide(refused, now, self._timing), now))

    async def _observe(self, key: Key, now: datetime) -> Observed | None:
        observed = self._caches.observe(key)
        if observed is None:
            self._explanations.forget(key)
            self._boards.forget(key)
            self._monitor.forget(key)
            return None
        observed = structs.replace(observed, admission=self._admission.decision(observed.job))
        return await self._explanations.with_start_problems(self._with_rejection(observed), now)

    def _with_rejection(self, observed: Observed) -> Observed:
        """A rule of the operator that forbids the job stops the next attempt, not one that was made before."""
        if observed.current_job is not None:
            return observed
        return structs.replace(observed, rejected_reason=refusal(observed.job, self._defaults.forbidden))

    async def _record_reports(self, observed: Observed, now: datetime) -> Observed:
        """Status has what the workers report before anything is decided by it."""
        key, reports = observed.job.metadata.key, self._monitor.due_reports(observed, now)
        job = observed.job
        if not observed.finished:
            job = await self._write_status(job, self._monitor.fold_reports(observed, reports, now))
        if reports:
            self._monitor.acknowledge(key, reports)
        for warning in (warning for report in reports for warning in checkpoint_warnings(report.batch)):
            self._events.warning(TRAINING_JOBS, job, warning.reason, warning.message)
        return structs.replace(observed, job=job)

    async def _is_suspended_by_queue(self, observed: Observed) -> bool:
        """Kueue takes a job back by suspending its Job. The cache may show the deleted pods before the suspension."""
        if not observed.queued or observed.current_job is None:
            return False
        try:
            return (await self._cluster.get(JOBS, observed.current_job.metadata.key)).spec.suspend
        except NotFound:
            return False

    async def _start_new_attempt(self, observed: Observed, action: StartNewAttempt, now: datetime) -> Result:
        """Write the number of the new attempt. The next reconcile stops the old attempt, then makes the new one.

        A crash in between changes nothing: the number is the only copy of the decision.
        """
        if await self._is_suspended_by_queue(observed):
            return Done()
        await save_worker_logs(self._cluster, observed, action, on_one_machine=self._defaults.shared_loopback)
        await self._write_status(observed.job, next_status(observed, action, now))
        return RequeueAfter(0.0)

    async def _apply(self, action: Action, observed: Observed) -> Observed:
        applier = Applier(
            observed,
            self._caches,
            self._cluster,
            self._writer.for_key(observed.job.metadata.key),
            defaults=self._defaults,
            timing=self._timing,
            reports=self._receiver.endpoint_json,
            avoided=self._monitor.nodes_to_avoid(observed.job),
        )
        on_one_machine = self._defaults.shared_loopback
        async with saving_worker_logs(self._cluster, observed, action, on_one_machine=on_one_machine):
            return await applier.apply(action)

    async def _write_status(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJob:
        """Nothing when nothing changed."""
        session = self._writer.for_key(job.metadata.key)
        written = await write_status(session, TRAINING_JOBS, job, job.status, status)
        if written is None:
            return job
        _log_transition(job, status)
        self._metrics.status_written(job, status)
        record_events(self._events, TRAINING_JOBS, job, events_for(job, status))
        return written

    async def _requeue(self, observed: Observed, now: datetime) -> Result:
        if observed.finished:
            self._monitor.forget(observed.job.metadata.key)
        due = expiry(observed.job) if observed.finished else None
        if due is not None and now >= due:
            await delete_expired(self._writer.for_key(observed.job.metadata.key), TRAINING_JOBS, observed.job)
            return Done()
        moments = [
            (at - now).total_seconds()
            for at in (requeue_at(observed, now, self._timing), self._explanations.next_check(observed, now))
            if at is not None
        ]
        if observed.blocked_by:
            moments.append(OBSTACLE_RECHECK_S)
        if (check_in_s := self._monitor.next_check_in_s(observed, now)) is not None:
            moments.append(check_in_s)
        if (write_at := self._receiver.inbox.due(observed.job.metadata.key, now)) is not None:
            moments.append(max(0.0, (write_at - now).total_seconds()))
        return RequeueAfter(min(moments)) if moments else Done()


def _log_transition(job: TrainingJob, status: TrainingJobStatus) -> None:
    """Without the message: it may end with a worker's last lines, which belong to the job's user."""
    old = job.status or TrainingJobStatus()
    step = (status.state, status.restart_count, reason_of(status))
    write = log.debug if step == (old.state, old.restart_count, reason_of(old)) else log.info
    write("status", key=str(job.metadata.key), state=status.state, attempt=status.restart_count, why=reason_of(status))


def training_job_controller(
    operator: Operator,
    cluster: Cluster,
    *,
    defaults: Defaults,
    now: Now,
    timing: Timing = TIMING,
    office: ReportReceiver | None = None,
    room: SharedLedger | None = None,
    gang_admission: bool = True,
    per_job_metrics: bool = True,
) -> Controller[TrainingJob]:
    """The controller, on the operator's stores. All controllers of an operator share one ledger (`room`).

    Without a report receiver that serves, no worker reports.
    """
    receiver = office or ReportReceiver(now=now)
    monitor = WorkerMonitor(receiver, cluster, timing)
    writer = operator.writer()
    caches = Caches.of(operator)
    admission = GangAdmission.of(
        operator,
        shared_ledger=room or SharedLedger(operator),
        template=lambda job: with_avoided_nodes(pod_template(job, defaults), monitor.nodes_to_avoid(job)),
        avoided=monitor.nodes_to_avoid,
        now=now,
        patience_s=timing.starvation_timeout_s,
        per_namespace=timing.reservations_per_namespace,
        enabled=gang_admission,
    )
    metrics = TrainingJobMetrics(
        operator.registry,
        caches.training_jobs,
        per_job=per_job_metrics,
        now=now,
        gpu_utilization_percent=monitor.gpu_utilization_percent,
    )
    reconciler = TrainingJobReconciler(
        cluster,
        caches,
        admission,
        writer,
        operator.recorder,
        metrics,
        receiver,
        monitor,
        defaults=defaults,
        timing=timing,
        now=now,
    )
    return Controller(
        name="trainingjob",
        resource=TRAINING_JOBS,
        reconciler=InstrumentedReconciler(reconciler, metrics, caches.training_jobs),
        writer=writer,
        watches=(
            Watch(CONFIG_MAPS, OWNER),
            Watch(SERVICES, OWNER),
            Watch(SERVICE_ACCOUNTS, OWNER),
            Watch(DEPLOYMENTS, OWNER),
            Watch(JOBS, OWNER),
            Watch(PODS, training_job_key),
            Watch(PODS, tensorboard_of),
            NodeReadinessWatch(caches.pods),
            FreedStores(caches.training_jobs),
            admission,
            receiver.inbox,
        ),
    )
