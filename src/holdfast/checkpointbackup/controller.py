"""Begins the runs of a CheckpointBackup, follows them, and ends what no agent can: observe, decide, apply, status."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import structs

from holdfast.api.checkpointbackup import CheckpointBackup, CheckpointBackupStatus
from holdfast.api.meta import Key
from holdfast.checkpointbackup import retention
from holdfast.checkpointbackup.actions import Action, BeginRun, DeleteOldImages, DeletePod
from holdfast.checkpointbackup.apply import delete_saved_pod, label_node, wanted_backup, with_details
from holdfast.checkpointbackup.decision import decide, may_begin, requeue_in_s
from holdfast.checkpointbackup.metrics import AgentGauges, CheckpointBackupMetrics, events_for
from holdfast.checkpointbackup.observe import CheckpointBackupCaches, PodClaims, Stopwatch, ages
from holdfast.checkpointbackup.retention import CredentialReader, ImageRetention
from holdfast.checkpointbackup.snapshot import (
    TIMING,
    BackupTiming,
    CheckpointBackupSnapshot,
    condition_of,
    with_backup,
)
from holdfast.checkpointbackup.status import next_status
from holdfast.checkpoints.images.errors import ImageError
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.controller import Controller, Done, NodeReadinessWatch, Result, Watch
from holdfast.runtime.events import Recorder
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now, boottime_s
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.reconciler import EventMessage, InstrumentedReconciler, KindReconciler
from holdfast.times import parse_optional_time


class CheckpointBackupReconciler(
    KindReconciler[CheckpointBackup, CheckpointBackupStatus, CheckpointBackupSnapshot, Action]
):
    """The reconciler of the kind. Nothing is cleaned up after a deleted backup: its images stay."""

    def __init__(
        self,
        cluster: Cluster,
        caches: CheckpointBackupCaches,
        requests: BackupRequests,
        retention: ImageRetention,
        writer: WriteTracker,
        events: Recorder,
        metrics: CheckpointBackupMetrics,
        *,
        now: Now,
        clock: Callable[[], float],
        timing: BackupTiming,
        external_agent: bool,
        runs_containers: bool,
        plain_http: Collection[str],
    ) -> None:
        super().__init__(CHECKPOINT_BACKUPS, caches.backups, writer, events, metrics, now=now)
        self._cluster = cluster
        self._caches = caches
        self._requests = requests
        self._retention = retention
        self._backup_metrics = metrics
        self._timing = timing
        self._external_agent = external_agent
        self._runs_containers = runs_containers
        self._plain_http = plain_http
        self._claims = PodClaims(caches.backups)
        self._stopwatch = Stopwatch(clock)
        self._seen: dict[Key, CheckpointBackup] = {}
        """Each backup as it was last seen or written: agents write phases, and these are reported, too."""

    async def observe(self, obj: CheckpointBackup, now: datetime) -> CheckpointBackupSnapshot:
        self._report_changes(obj)
        observed = self._caches.snapshot(obj)
        run_age_s, due_age_s = ages(observed, self._stopwatch, now)
        observed = structs.replace(
            observed,
            run_age_s=run_age_s,
            due_age_s=due_age_s,
            has_external_agent=self._external_agent,
            runs_containers=self._runs_containers,
            has_old_images=not observed.is_under_way and self._retention.is_due(obj),
        )
        if observed.is_under_way:
            self._retention.begun(obj)
            return self._with_progress(observed)
        self._requests.withdraw(obj.metadata.uid)
        if observed.pod is None or not may_begin(observed, now):
            self._claims.release(obj.metadata.key)
            return observed
        other = self._claims.claim(observed.pod, obj)
        if other:
            return structs.replace(observed, other_backup=other)
        return await with_details(observed, self._cluster)

    def decide(self, snapshot: CheckpointBackupSnapshot, now: datetime) -> tuple[Action, ...]:
        return decide(snapshot, now, self._timing)

    async def apply(
        self, action: Action, snapshot: CheckpointBackupSnapshot, now: datetime
    ) -> CheckpointBackupSnapshot:
        backup = snapshot.backup
        session = self.session(backup.metadata.key)
        match action:
            case BeginRun():
                for warning in action.warnings:
                    self._events.warning(self._resource, backup, warning.reason, warning.message)
                if action.mode.mode == "container":
                    backup = await label_node(session, backup, action.node)
                return structs.replace(snapshot, backup=backup)
            case DeletePod():
                await delete_saved_pod(session, snapshot)
            case DeleteOldImages():
                result = await self._retention.delete_old_images(backup)
                self._backup_metrics.images_deleted(result.deleted)
                if result.problem:
                    self._events.warning(self._resource, backup, "ImagesNotDeleted", result.problem)
        return snapshot

    def next_status(self, snapshot: CheckpointBackupSnapshot, action: Action, now: datetime) -> CheckpointBackupStatus:
        return next_status(snapshot, action, now)

    async def end(self, key: Key, obj: CheckpointBackup | None, now: datetime) -> Result:
        seen = self._seen.pop(key, None)
        if seen is not None:
            self._requests.withdraw(seen.metadata.uid)
        self._claims.release(key)
        self._stopwatch.forget(key)
        self._retention.forget(key)
        return Done()

    def object_of(self, snapshot: CheckpointBackupSnapshot) -> CheckpointBackup:
        return snapshot.backup

    def with_object(self, snapshot: CheckpointBackupSnapshot, obj: CheckpointBackup) -> CheckpointBackupSnapshot:
        return with_backup(snapshot, obj)

    def recorded(self, snapshot: CheckpointBackupSnapshot) -> None:
        self._seen[snapshot.backup.metadata.key] = snapshot.backup
        if snapshot.is_under_way:
            # An agent may have ended it before this operator looks again.
            self._retention.begun(snapshot.backup)

    def events_for(self, obj: CheckpointBackup, status: CheckpointBackupStatus) -> Iterable[EventMessage]:
        return events_for(obj, status)

    def log_fields(self, status: CheckpointBackupStatus) -> Mapping[str, object]:
        completed = condition_of(status, "Completed")
        return {
            "phase": status.phase,
            "run": status.run,
            "why": completed.reason if completed is not None else "",
            "node": status.node_name,
            "mode": status.mode,
        }

    def expiry(self, obj: CheckpointBackup) -> datetime | None:
        return None

    def requeue_in_s(self, snapshot: CheckpointBackupSnapshot, action: Action, now: datetime) -> Iterator[float]:
        yield from requeue_in_s(snapshot, now, self._timing)
        if self._retention.is_due(snapshot.backup):
            yield retention.AGAIN_S

    def _report_changes(self, backup: CheckpointBackup) -> None:
        """What an agent has written since: its phases are counted as this operator's own are.

        holdfast's agents record their Events themselves.
        """
        before = self._seen.get(backup.metadata.key)
        self._seen[backup.metadata.key] = backup
        if before is None or before.metadata.uid != backup.metadata.uid or before.status == backup.status:
            return
        status = backup.status or CheckpointBackupStatus()
        self._log_transition(backup.metadata.key, before.status, status)
        self._metrics.status_written(before, status)
        for event in events_for(before, status) if self._external_agent else ():
            record = self._events.warning if event.warning else self._events.normal
            record(self._resource, backup, event.reason, event.message)

    def _with_progress(self, observed: CheckpointBackupSnapshot) -> CheckpointBackupSnapshot:
        """In application mode: have the sidecar take the backup, and read how far it is."""
        status, meta = observed.status, observed.backup.metadata
        began = parse_optional_time(status.start_time)
        if status.mode != "application" or began is None:
            return observed
        try:
            wanted = wanted_backup(observed, self._plain_http)
        except ImageError as error:
            return structs.replace(observed, rejected_reason=str(error))
        self._requests.put(status.pod_uid, wanted, deadline=began + observed.timeout)
        return structs.replace(observed, progress=self._requests.progress(meta.uid, status.run))


def checkpoint_backup_controller(
    operator: Operator,
    cluster: Cluster,
    *,
    now: Now,
    requests: BackupRequests,
    credentials: CredentialReader,
    timing: BackupTiming = TIMING,
    clock: Callable[[], float] = boottime_s,
    external_agent: bool = False,
    runs_containers: bool = True,
    plain_http: Collection[str] = (),
) -> Controller[CheckpointBackup]:
    """The controller, on the operator's stores. `requests` is shared with the receiver of the sidecars' reports."""
    writer = operator.writer()
    caches = CheckpointBackupCaches.of(operator)
    metrics = CheckpointBackupMetrics(operator.registry, clock)
    AgentGauges(operator.registry, operator.shown(caches.agents))
    reconciler = CheckpointBackupReconciler(
        cluster,
        caches,
        requests,
        ImageRetention(credentials, plain_http=plain_http),
        writer,
        operator.recorder,
        metrics,
        now=now,
        clock=clock,
        timing=timing,
        external_agent=external_agent,
        runs_containers=runs_containers,
        plain_http=plain_http,
    )
    return Controller(
        name="checkpointbackup",
        resource=CHECKPOINT_BACKUPS,
        reconciler=InstrumentedReconciler(reconciler, metrics),
        writer=writer,
        watches=(
            Watch(PODS, caches.keys_of_pod),
            Watch(CHECKPOINT_BACKUPS, caches.keys_of_same_pod),
            NodeReadinessWatch(caches.keys_on_node),
            requests,
        ),
    )
