"""The life of a sidecar: restore, watch and tell while the training runs, and keep what is left when it has ended."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from holdfast.api.reports import Checkpoint, Progress, Resumed, TerminationReport, WorkerReport
from holdfast.checkpoints.completeness import SETTLE_S
from holdfast.checkpoints.errors import CheckpointError
from holdfast.checkpoints.lease import RENEW_S, Holder, Lease
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.settings import is_unencrypted, open_bucket
from holdfast.checkpoints.store import Store
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar import http, progress
from holdfast.sidecar.background import BackgroundTasks, TensorboardSync, loops, run_unless_stopped
from holdfast.sidecar.http import AttemptState
from holdfast.sidecar.outbox import ReportOutbox
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.progress import GpuUtilization, MetricsScraper, ProgressFileReader
from holdfast.sidecar.reporter import GAP_S, OperatorClient, Reporter
from holdfast.sidecar.restore import RestartState, RestoreLoop, ResumeInfo, read_noted, withdraw_decision
from holdfast.sidecar.settings import Checkpoints, Settings
from holdfast.sidecar.shutdown import ShutdownCoordinator, write_termination_report
from holdfast.sidecar.storage import CheckpointBackend, ObjectStoreUpload, PrimaryVolume, SecondaryVolume
from holdfast.train.progress import Gpus

# Each file that is under way takes about 10 MiB; the whole process is to stay below 80 MiB.
WORKERS = 2
# What is done once before the end, each.
LAST_WORD_S = 3.0
MOST_LOST = 3
ENDED_TRIES = 6

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Clocks(NamedTuple):
    wall: Callable[[], float]
    """Seconds since 1970."""
    quiet_s: float = SETTLE_S


class Sidecar:
    """`run_id` is random, and new with each start."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], *, clocks: Clocks, run_id: str) -> None:
        self._settings = settings
        self._environ = environ
        self._clocks = clocks
        self._standing = AttemptState()
        self._stopping = ShutdownCoordinator(settings, self._standing)
        self._state = RestartState(settings.state_dir)
        self._backlog = ReportOutbox(_report_header(settings, run_id))
        self._reporting: Reporter | None = None
        self._place: CheckpointBackend | None = None
        self._keeping: CheckpointPersister | None = None
        self._mirroring: TensorboardSync | None = None
        self._began = ResumeInfo()
        holder = Holder(uid=settings.uid, name=f"{settings.namespace}/{settings.job}", attempt=settings.attempt)
        place = settings.checkpoints
        # On a volume worker 0 writes for all; to an object store each worker writes its own.
        is_writing = place is not None and (settings.index == 0 or bool(place.store))
        self._lease = Lease(holder, time.monotonic) if is_writing else None
        self._busy = GpuUtilization(Gpus())
        self._files = list(self._lines()) if settings.index == 0 else []

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, which is when the training has ended, and then to the end of what is to be done."""
        probes = http.probe_app(self._standing, self._stopping.pre_stop, self._settings.uid)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(http.serve_app(probes, self._settings.host, self._settings.port))
            running = await stack.enter_async_context(loops())
            await self._serve_progress(stack)
            await self._start_reporting(stack, running)
            if await run_unless_stopped(stop, self._restore()):
                self._standing.is_started = True
                self._watch(running)
                await stop.wait()
                await self._finish()

    async def _serve_progress(self, stack: contextlib.AsyncExitStack) -> None:
        for host in _own_addresses(self._settings.host):
            app = http.progress_app(self._journal_progress, self._clocks.wall, shared=_is_shared(self._settings.host))
            try:
                await stack.enter_async_context(http.serve_app(app, host, self._settings.progress_port))
            except http.CannotListen as error:
                log.warning("no progress can be posted there", reason=str(error))

    async def _start_reporting(self, stack: contextlib.AsyncExitStack, running: BackgroundTasks) -> None:
        reports, token = self._settings.reports_file, self._settings.token_file
        if reports is None or token is None:
            return
        operator = await stack.enter_async_context(OperatorClient(reports, token))
        self._reporting = self._stopping.reporting = Reporter(
            self._backlog,
            operator,
            self._stopping.on_reply,
            every_s=self._settings.report_s,
            wall=self._clocks.wall,
            heeds=self._stopping.trainer_saves_on_notice,
            gpu_percent=lambda: self._busy.percent,
        )
        running.keep_running(self._reporting.run)

    async def _restore(self) -> None:
        place, began = self._settings.checkpoints, self._state.began()
        if place is None:
            return
        if began is None:
            began = await self._beginning(place).run()
            self._state.begin(began)
        if began.path:
            self._backlog.resumed(Resumed(path=began.path, epoch=began.done))
        self._began = began
        self._open(place)

    def _beginning(self, place: Checkpoints) -> RestoreLoop:
        return RestoreLoop(
            self._settings,
            place,
            lambda: self._store(place),
            environ=self._environ,
            about=self._about,
            tell=self._tell_checkpoint,
            wall=self._clocks.wall,
            lease=self._lease if self._settings.index == 0 else None,
        )

    def _store(self, place: Checkpoints) -> Store:
        return _bucket(place, self._environ) or VolumeStore(place.folder.parent, quiet_s=self._clocks.quiet_s)

    def _open(self, kept: Checkpoints) -> None:
        """Where this fails, the training goes on: it may have started long ago, and this process anew."""
        began = self._began
        attempts = (began.attempt, self._settings.attempt) if began.leaf else ()
        try:
            self._place = _place(kept, self._settings, self._environ, self._clocks.quiet_s)
        except CheckpointError as error:
            log.error("no checkpoint is kept", reason=str(error))
            path = kept.store or str(kept.folder)
            failed = Checkpoint(path=path, epoch=0, outcome="failed", reason=str(error)[:1000], at=self._clocks.wall())
            self._tell_checkpoint(failed)
            return
        if kept.store and is_unencrypted(kept.store, self._environ):
            log.warning("the store is reached by http://: anybody on the way can read and change checkpoints")
        if kept.store and kept.tensorboard is not None:
            self._mirroring = TensorboardSync(kept.tensorboard, open_bucket(kept.store, self._environ), self._must_hold)
        self._keeping = self._stopping.keeping = CheckpointPersister(
            self._place,
            keep=kept.keep,
            needed={CheckpointName(began.epoch, attempt, began.leaf) for attempt in attempts},
            about=self._about_to_write,
            tell=self._tell_checkpoint,
            wall=self._clocks.wall,
            by=kept.best_by,
            reported=self._backlog.metrics_of,
            is_over=lambda: self._standing.is_over or (self._lease is not None and self._lease.is_lost),
        )

    @property
    def _own_keeping(self) -> CheckpointPersister | None:
        """On a volume that all share, worker 0 keeps for all."""
        return None if isinstance(self._place, SecondaryVolume) else self._keeping

    def _watch(self, running: BackgroundTasks) -> None:
        settings, keeping = self._settings, self._own_keeping
        if self._lease is not None:
            running.keep_running(self._renew)
        if keeping is not None:
            running.keep_running(keeping.run)
        if self._mirroring is not None:
            running.keep_running(self._mirroring.run)
        running.keep_running(self._busy.run)
        if settings.index > 0:
            return  # worker 0 speaks for all: the others train the same epochs
        for lines in self._files:
            running.keep_running(lines.run)
        if settings.metrics_port is not None:
            hosts = [host or http.LOOPBACK for host in _own_addresses(settings.host)]
            shared = _is_shared(settings.host)
            page = MetricsScraper(
                hosts,
                settings.metrics_port,
                settings.metric_names,
                self._journal_progress,
                self._clocks.wall,
                shared=shared,
            )
            running.keep_running(page.run)

    def _lines(self) -> Iterator[ProgressFileReader]:
        """What is told in files: in the training's own, and in ours, of what it has told in other ways."""
        for file, parse in (
            (self._settings.progress_file, lambda line: progress.parse_line(line, self._clocks.wall())),
            (self._state.progress_journal, read_noted),
        ):
            if file is not None:
                yield ProgressFileReader(file, self._add_progress, parse, is_full=lambda: self._backlog.is_full)

    def _add_progress(self, entry: Progress) -> None:
        self._busy.reported(entry)
        if self._backlog.add_progress(entry) and self._reporting is not None:
            self._reporting.send_now()

    def _journal_progress(self, entry: Progress) -> None:
        """What no file of the training holds would be lost if this process were killed."""
        if self._settings.index > 0:
            self._busy.reported(entry)
            return
        if entry.step is None and self._state.journal_progress(entry):
            for lines in self._files:
                lines.wake()
        else:
            self._add_progress(entry)

    def _tell_checkpoint(self, entry: Checkpoint) -> None:
        # What another worker has is a part; the whole is there when worker 0 says so. Trouble is anybody's to tell.
        if self._settings.index > 0 and entry.outcome in ("completed", "uploaded"):
            return
        self._backlog.add_checkpoint(entry)
        if self._reporting is not None:
            self._reporting.send_now()

    async def _renew(self) -> None:
        """A training whose place another job has taken goes on, and nothing of it is kept."""
        place, lease = self._settings.checkpoints, self._lease
        while place is not None and lease is not None:
            try:
                store = await asyncio.to_thread(self._store, place)
                await asyncio.to_thread(lease.renew if self._settings.index == 0 else lease.watch, store)
            except (CheckpointError, OSError) as error:
                log.warning("the lease of the place for checkpoints is not renewed", reason=str(error))
            await asyncio.sleep(RENEW_S)

    async def _release(self) -> None:
        place, lease = self._settings.checkpoints, self._lease
        if place is None or lease is None or self._settings.index > 0:
            return
        try:
            await asyncio.to_thread(lambda: lease.release(self._store(place)))
        except (CheckpointError, OSError) as error:
            log.warning("the lease of the place for checkpoints is not released", reason=str(error))

    def _about_to_write(self) -> SaveInfo:
        self._must_hold()
        return self._about()

    def _must_hold(self) -> None:
        """Raises while another job may be using the place."""
        if self._lease is not None:
            self._lease.must_hold()

    def _about(self) -> SaveInfo:
        saved_at = datetime.fromtimestamp(self._clocks.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        settings = self._settings
        return SaveInfo(settings.uid, saved_at, settings.workers, settings.namespace, settings.job)

    async def _finish(self) -> None:
        await _within(LAST_WORD_S, self._withdraw())
        keeping = self._own_keeping
        if keeping is not None and not await _within(self._stopping.left_s(), self._persist_remaining(keeping)):
            log.warning("the grace period ends before everything is kept")
        await _within(LAST_WORD_S, self._read_the_rest())
        write_termination_report(self._settings.termination_log, self._last_word())
        # If all of the grace period was needed until here, the kubelet may end this process at any moment.
        await _within(LAST_WORD_S, self._send_remaining())
        if self._mirroring is not None:
            await _within(LAST_WORD_S, asyncio.to_thread(self._mirroring.upload_new))
        await _within(LAST_WORD_S, self._release())

    async def _persist_remaining(self, keeping: CheckpointPersister) -> None:
        await keeping.persist_remaining()
        if keeping.needs_exit_code and await self._ended_well():
            await keeping.persist_remaining(ended_well=True)

    async def _ended_well(self) -> bool:
        """The operator sees how the training ended, a moment after it did."""
        for _ in range(ENDED_TRIES):
            if self._reporting is None or not await self._reporting.send():
                return False
            if self._standing.trainer_succeeded:
                return True
            await asyncio.sleep(GAP_S)
        return False

    async def _withdraw(self) -> None:
        """Where another worker 0 follows in this attempt: not after one that ended by itself, but in an elastic one.

        Otherwise a worker that starts later would wait for ever.
        """
        place, follows = self._settings.checkpoints, self._settings.elastic or self._stopping.is_pod_terminating
        is_lost = self._lease is not None and self._lease.is_lost
        if place is None or self._settings.index > 0 or self._standing.is_over or is_lost or not follows:
            return
        try:
            await asyncio.to_thread(lambda: withdraw_decision(self._store(place), self._settings.attempt))
        except (CheckpointError, OSError) as error:
            log.warning("what this attempt began with could not be withdrawn", reason=str(error))

    async def _read_the_rest(self) -> None:
        for lines in self._files:
            while await lines.read():
                pass

    async def _send_remaining(self) -> None:
        while self._reporting is not None and not self._backlog.is_empty:
            if not await self._reporting.send():
                return
            if not self._backlog.is_empty:
                await asyncio.sleep(GAP_S)

    def _last_word(self) -> TerminationReport:
        word = TerminationReport(attempt=self._settings.attempt, progress=self._backlog.newest)
        keeping, place = self._keeping, self._place
        if keeping is None or place is None:
            return word
        return TerminationReport(
            attempt=word.attempt,
            checkpoint=place.address(keeping.newest_persisted.name) if keeping.newest_persisted is not None else "",
            checkpoint_epoch=keeping.newest_persisted.epochs_done if keeping.newest_persisted is not None else None,
            lost=tuple(place.address(name) for name in keeping.unpersisted[:MOST_LOST]),
            progress=word.progress,
        )


def _report_header(settings: Settings, run_id: str) -> WorkerReport:
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
    """Whether the work was done in time."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True


def _own_addresses(host: str) -> list[str]:
    """The pod's, and 127.0.0.1 where that is the pod's alone: on one machine, pods with a 127.x.y.z each share it."""
    return [host] if not host or http.is_loopback(host) else [host, http.LOOPBACK]


def _is_shared(host: str) -> bool:
    """Whether the pod's network is that of the machine, with all its users: pods have loopback addresses there."""
    return http.is_loopback(host)


def _bucket(place: Checkpoints, environ: Mapping[str, str]) -> ObjectStore | None:
    return ObjectStore(open_bucket(place.store, environ), workers=WORKERS) if place.store else None


def _place(place: Checkpoints, settings: Settings, environ: Mapping[str, str], quiet_s: float) -> CheckpointBackend:
    store, attempt = _bucket(place, environ), settings.attempt
    if store is not None:
        index, workers = settings.index, settings.workers
        return ObjectStoreUpload(place.folder, store, attempt, index=index, workers=workers, quiet_s=quiet_s)
    return SecondaryVolume(place.folder) if settings.index else PrimaryVolume(place.folder, attempt, quiet_s=quiet_s)
