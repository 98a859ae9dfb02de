"""The lifecycle of a sidecar: restore, watch and report while the training runs, then persist what remains."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import structlog

from holdfast.api.backup_runs import WantedBackup
from holdfast.api.reports import (
    CheckpointReport,
    ProgressReport,
    ReportReply,
    Resumed,
    TerminationReport,
    WorkerReport,
)
from holdfast.checkpoints.completeness import SETTLE_S
from holdfast.checkpoints.errors import CheckpointError
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo
from holdfast.checkpoints.settings import is_unencrypted, open_bucket
from holdfast.checkpoints.store import RENEW_S, CheckpointStore, Holder, StoreLease
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.httpserver import CannotListen
from holdfast.sidecar import http, progress
from holdfast.sidecar.background import BackgroundTasks, TensorboardSync, background_tasks, run_unless_stopped
from holdfast.sidecar.backups import BackupRuns, Report
from holdfast.sidecar.http import AttemptState
from holdfast.sidecar.outbox import ReportOutbox
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.progress import GpuUtilization, MetricsScraper, ProgressFileReader
from holdfast.sidecar.reporter import GAP_S, OperatorClient, Reporter
from holdfast.sidecar.restore import RestartState, RestoreLoop, ResumeInfo, parse_journal_line, withdraw_decision
from holdfast.sidecar.settings import Checkpoints, SidecarSettings
from holdfast.sidecar.shutdown import ShutdownCoordinator, write_termination_report
from holdfast.sidecar.storage import CheckpointBackend, SecondaryVolume, open_backend, open_object_store
from holdfast.times import format_time
from holdfast.train.progress import GpuMonitor

if TYPE_CHECKING:
    from holdfast.sidecar.backup_source import BackupSource

# The timeout of each final task before the sidecar exits.
FINAL_TASK_TIMEOUT_S = 3.0
MAX_LOST_CHECKPOINTS = 3
EXIT_CODE_ATTEMPTS = 6

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Clocks(NamedTuple):
    wall: Callable[[], float]
    """Seconds since 1970."""
    quiet_s: float = SETTLE_S


class Sidecar:
    """`run_id` is random, and differs between starts."""

    def __init__(self, settings: SidecarSettings, environ: Mapping[str, str], *, clocks: Clocks, run_id: str) -> None:
        self._settings = settings
        self._environ = environ
        self._clocks = clocks
        self._attempt_state = AttemptState()
        self._shutdown = ShutdownCoordinator(settings, self._attempt_state)
        self._restart_state = RestartState(settings.state_dir)
        self._outbox = ReportOutbox(_report_header(settings, run_id))
        self._reporter: Reporter | None = None
        self._backend: CheckpointBackend | None = None
        self._persister: CheckpointPersister | None = None
        self._tensorboard_sync: TensorboardSync | None = None
        self._resume_info = ResumeInfo()
        holder = Holder(uid=settings.uid, name=f"{settings.namespace}/{settings.job}", attempt=settings.attempt)
        checkpoints = settings.checkpoints
        # On a volume worker 0 writes for all; to an object store each worker writes its own files.
        is_writing = checkpoints is not None and (settings.index == 0 or bool(checkpoints.store))
        self._lease = StoreLease(holder, time.monotonic) if is_writing else None
        self._gpu_utilization = GpuUtilization(GpuMonitor())
        self._operator: OperatorClient | None = None
        self._backups = BackupRuns(self._carry_out_backup, self._report_now)
        self._started, self._stop = asyncio.Event(), asyncio.Event()
        self._progress_readers = list(self._make_progress_readers()) if settings.index == 0 else []

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, which means that the training has ended, and then finish the remaining work."""
        self._stop = stop
        shutdown = self._shutdown
        probes = http.probe_app(self._attempt_state, shutdown.pre_stop, shutdown.on_node_notice, self._settings.uid)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(http.serve_app(probes, self._settings.host, self._settings.port))
            running = await stack.enter_async_context(background_tasks())
            await self._serve_progress(stack)
            await self._start_reporting(stack, running)
            stack.push_async_callback(self._backups.end)
            if await run_unless_stopped(stop, self._restore()):
                self._attempt_state.is_started = True
                self._started.set()
                self._start_loops(running)
                await stop.wait()
                await self._finish()

    async def _serve_progress(self, stack: contextlib.AsyncExitStack) -> None:
        shared = http.is_shared(self._settings.host)
        for host in http.own_addresses(self._settings.host):
            app = http.progress_app(self._journal_progress, self._clocks.wall, shared=shared)
            try:
                await stack.enter_async_context(http.serve_app(app, host, self._settings.progress_port))
            except CannotListen as error:
                log.warning("no progress can be posted there", reason=str(error))

    async def _start_reporting(self, stack: contextlib.AsyncExitStack, running: BackgroundTasks) -> None:
        reports, token = self._settings.reports_file, self._settings.token_file
        if reports is None or token is None:
            return
        self._operator = await stack.enter_async_context(OperatorClient(reports, token))
        self._reporter = self._shutdown.reporter = Reporter(
            self._outbox,
            self._operator,
            self._on_reply,
            every_s=self._settings.report_s,
            wall=self._clocks.wall,
            saves_on_notice=self._shutdown.trainer_saves_on_notice,
            gpu_percent=lambda: self._gpu_utilization.percent,
            backup=lambda: self._backups.progress,
        )
        running.start(self._reporter.run)

    def _on_reply(self, reply: ReportReply) -> None:
        self._shutdown.on_reply(reply)
        self._backups.on_reply(reply)

    def _report_now(self) -> None:
        if self._reporter is not None:
            self._reporter.send_now()

    async def _carry_out_backup(self, wanted: WantedBackup, report: Report) -> None:
        from holdfast.sidecar.backup_run import SidecarBackupRun

        assert self._operator is not None, "the operator's answer has asked for it"
        await SidecarBackupRun(wanted, self._backup_source, self._operator, report).run()

    async def _backup_source(self) -> "BackupSource | None":
        from holdfast.sidecar.backup_source import BackupSource

        await self._started.wait()
        checkpoints, persister, backend = self._settings.checkpoints, self._persister, self._backend
        if checkpoints is None or persister is None or backend is None:
            return None
        return BackupSource(
            self._settings, checkpoints, persister, backend, lambda: self._store(checkpoints), self._stop.is_set
        )

    async def _restore(self) -> None:
        checkpoints, resume_info = self._settings.checkpoints, self._restart_state.began()
        if checkpoints is None:
            return
        if resume_info is None:
            resume_info = await self._restore_loop(checkpoints).run()
            self._restart_state.begin(resume_info)
        if resume_info.path:
            self._outbox.resumed(Resumed(path=resume_info.path, epoch=resume_info.done))
        self._resume_info = resume_info
        self._start_persister(checkpoints)

    def _restore_loop(self, checkpoints: Checkpoints) -> RestoreLoop:
        return RestoreLoop(
            self._settings,
            checkpoints,
            lambda: self._store(checkpoints),
            environ=self._environ,
            about=self._save_info,
            on_checkpoint=self._report_checkpoint,
            wall=self._clocks.wall,
            lease=self._lease if self._settings.index == 0 else None,
        )

    def _store(self, checkpoints: Checkpoints) -> CheckpointStore:
        return open_object_store(checkpoints, self._environ) or VolumeStore(
            checkpoints.folder.parent, quiet_s=self._clocks.quiet_s
        )

    def _start_persister(self, checkpoints: Checkpoints) -> None:
        """A failure does not stop the training: after a restart of the sidecar it may have run for long."""
        resume_info = self._resume_info
        attempts = (resume_info.attempt, self._settings.attempt) if resume_info.leaf else ()
        try:
            self._backend = open_backend(checkpoints, self._settings, self._environ, self._clocks.quiet_s)
        except CheckpointError as error:
            log.error("no checkpoint is kept", reason=str(error))
            path = checkpoints.store or str(checkpoints.folder)
            failed = CheckpointReport(
                path=path, epoch=0, outcome="failed", reason=str(error)[:1000], at=self._clocks.wall()
            )
            self._report_checkpoint(failed)
            return
        if checkpoints.store and is_unencrypted(checkpoints.store, self._environ):
            log.warning("the store is reached by http://: anybody on the way can read and change checkpoints")
        if checkpoints.store and checkpoints.tensorboard is not None:
            self._tensorboard_sync = TensorboardSync(
                checkpoints.tensorboard, open_bucket(checkpoints.store, self._environ), self._must_hold
            )
        self._persister = self._shutdown.persister = CheckpointPersister(
            self._backend,
            keep=checkpoints.keep,
            needed={CheckpointName(resume_info.epoch, attempt, resume_info.leaf) for attempt in attempts},
            about=self._save_info_while_held,
            on_checkpoint=self._report_checkpoint,
            wall=self._clocks.wall,
            best_by=checkpoints.best_by,
            reported=self._outbox.metrics_of,
            is_over=lambda: self._attempt_state.is_over or (self._lease is not None and self._lease.is_lost),
        )

    @property
    def _own_persister(self) -> CheckpointPersister | None:
        """None for the other workers on a shared volume: worker 0 persists for all."""
        return None if isinstance(self._backend, SecondaryVolume) else self._persister

    def _start_loops(self, running: BackgroundTasks) -> None:
        settings, persister = self._settings, self._own_persister
        if self._lease is not None:
            running.start(self._renew_lease)
        if persister is not None:
            running.start(persister.run)
        if self._tensorboard_sync is not None:
            running.start(self._tensorboard_sync.run)
        running.start(self._gpu_utilization.run)
        if settings.index > 0:
            return  # worker 0 reports for all: the others train the same epochs
        for reader in self._progress_readers:
            running.start(reader.run)
        if settings.metrics_port is not None:
            hosts = [host or http.LOOPBACK for host in http.own_addresses(settings.host)]
            shared = http.is_shared(settings.host)
            scraper = MetricsScraper(
                hosts,
                settings.metrics_port,
                settings.metric_names,
                self._journal_progress,
                self._clocks.wall,
                shared=shared,
            )
            running.start(scraper.run)

    def _make_progress_readers(self) -> Iterator[ProgressFileReader]:
        """Readers of PROGRESS_FILE, and of the journal of progress that the training reports in other ways."""
        for file, parse in (
            (self._settings.progress_file, lambda line: progress.parse_line(line, self._clocks.wall())),
            (self._restart_state.progress_journal, parse_journal_line),
        ):
            if file is not None:
                yield ProgressFileReader(file, self._add_progress, parse, is_full=lambda: self._outbox.is_full)

    def _add_progress(self, entry: ProgressReport) -> None:
        self._gpu_utilization.on_progress(entry)
        if self._outbox.add_progress(entry):
            self._report_now()

    def _journal_progress(self, entry: ProgressReport) -> None:
        """Progress that PROGRESS_FILE does not hold would be lost if this process were killed."""
        if self._settings.index > 0:
            self._gpu_utilization.on_progress(entry)
            return
        if entry.step is None and self._restart_state.journal_progress(entry):
            for reader in self._progress_readers:
                reader.wake()
        else:
            self._add_progress(entry)

    def _report_checkpoint(self, entry: CheckpointReport) -> None:
        # Other workers hold parts; a checkpoint is complete when worker 0 reports so. Every worker reports failures.
        if self._settings.index > 0 and entry.outcome in ("completed", "uploaded"):
            return
        self._outbox.add_checkpoint(entry)
        self._report_now()

    async def _renew_lease(self) -> None:
        """If another job takes the lease, the training continues, and none of its checkpoints is persisted."""
        checkpoints, lease = self._settings.checkpoints, self._lease
        while checkpoints is not None and lease is not None:
            try:
                store = await asyncio.to_thread(self._store, checkpoints)
                await asyncio.to_thread(lease.renew if self._settings.index == 0 else lease.watch, store)
            except (CheckpointError, OSError) as error:
                log.warning("the lease of the place for checkpoints is not renewed", reason=str(error))
            await asyncio.sleep(RENEW_S)

    async def _release_lease(self) -> None:
        checkpoints, lease = self._settings.checkpoints, self._lease
        if checkpoints is None or lease is None or self._settings.index > 0:
            return
        try:
            await asyncio.to_thread(lambda: lease.release(self._store(checkpoints)))
        except (CheckpointError, OSError) as error:
            log.warning("the lease of the place for checkpoints is not released", reason=str(error))

    def _save_info_while_held(self) -> SaveInfo:
        self._must_hold()
        return self._save_info()

    def _must_hold(self) -> None:
        """Raises while another job may hold the lease of the store."""
        if self._lease is not None:
            self._lease.must_hold()

    def _save_info(self) -> SaveInfo:
        saved_at = format_time(datetime.fromtimestamp(self._clocks.wall(), UTC))
        settings = self._settings
        return SaveInfo(settings.uid, saved_at, settings.workers, settings.namespace, settings.job)

    async def _finish(self) -> None:
        await _within(FINAL_TASK_TIMEOUT_S, self._withdraw_decision())
        persister = self._own_persister
        if persister is not None and not await _within(self._shutdown.left_s(), self._persist_remaining(persister)):
            log.warning("the grace period ends before everything is kept")
        await _within(FINAL_TASK_TIMEOUT_S, self._read_remaining_progress())
        write_termination_report(self._settings.termination_log, self._termination_report())
        # If the grace period is used up by now, the kubelet may kill this process at any moment.
        await _within(FINAL_TASK_TIMEOUT_S, self._send_remaining())
        if self._tensorboard_sync is not None:
            await _within(FINAL_TASK_TIMEOUT_S, asyncio.to_thread(self._tensorboard_sync.upload_new))
        await _within(FINAL_TASK_TIMEOUT_S, self._release_lease())
        await _within(self._shutdown.left_s(), self._finish_backup())

    async def _finish_backup(self) -> None:
        if self._backups.progress is not None and self._reporter is not None:
            await self._backups.finish()
            await self._reporter.send()

    async def _persist_remaining(self, persister: CheckpointPersister) -> None:
        await persister.persist_remaining()
        if persister.needs_exit_code and await self._trainer_succeeded():
            await persister.persist_remaining(succeeded=True)

    async def _trainer_succeeded(self) -> bool:
        """The operator sees the exit code of the training a moment after its end."""
        for _ in range(EXIT_CODE_ATTEMPTS):
            if self._reporter is None or not await self._reporter.send():
                return False
            if self._attempt_state.trainer_succeeded:
                return True
            await asyncio.sleep(GAP_S)
        return False

    async def _withdraw_decision(self) -> None:
        """Withdraw the decision if another worker 0 follows in this attempt: in an elastic job, or on pod termination.

        After a worker 0 that exits by itself none follows, and a worker that starts later would wait for ever.
        """
        checkpoints, has_successor = (
            self._settings.checkpoints,
            self._settings.elastic or self._shutdown.is_pod_terminating,
        )
        is_lost = self._lease is not None and self._lease.is_lost
        if (
            checkpoints is None
            or self._settings.index > 0
            or self._attempt_state.is_over
            or is_lost
            or not has_successor
        ):
            return
        try:
            await asyncio.to_thread(lambda: withdraw_decision(self._store(checkpoints), self._settings.attempt))
        except (CheckpointError, OSError) as error:
            log.warning("what this attempt began with could not be withdrawn", reason=str(error))

    async def _read_remaining_progress(self) -> None:
        for reader in self._progress_readers:
            while await reader.read():
                pass

    async def _send_remaining(self) -> None:
        while self._reporter is not None and not self._outbox.is_empty:
            if not await self._reporter.send():
                return
            if not self._outbox.is_empty:
                await asyncio.sleep(GAP_S)

    def _termination_report(self) -> TerminationReport:
        report = TerminationReport(attempt=self._settings.attempt, progress=self._outbox.newest)
        persister, backend = self._persister, self._backend
        if persister is None or backend is None:
            return report
        return TerminationReport(
            attempt=report.attempt,
            checkpoint=backend.address(persister.newest_persisted.name)
            if persister.newest_persisted is not None
            else "",
            checkpoint_epoch=persister.newest_persisted.epochs_done if persister.newest_persisted is not None else None,
            lost=tuple(backend.address(name) for name in persister.unpersisted[:MAX_LOST_CHECKPOINTS]),
            progress=report.progress,
        )


def _report_header(settings: SidecarSettings, run_id: str) -> WorkerReport:
    return WorkerReport(
        job=settings.job,
        namespace=settings.namespace,
        uid=settings.uid,
        attempt=settings.attempt,
        index=settings.index,
        run=run_id,
        sequence=1,
        sent_at=0.0,
    )


async def _within(seconds: float, work: Awaitable[None]) -> bool:
    """Whether the work finished in time."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True
