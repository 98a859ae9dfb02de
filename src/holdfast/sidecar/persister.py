"""Persists the checkpoints that the training saves: one at a time, the newest first, even if the last one failed."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import structlog
from msgspec import Struct

from holdfast.api.reports import CheckpointReport, Outcome
from holdfast.checkpoints.completeness import FolderScan, measured
from holdfast.checkpoints.errors import CheckpointError, Incomplete, MissingPart, UnsafeContent
from holdfast.checkpoints.files import FileEntry
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo
from holdfast.checkpoints.retention import Metric, StoredCheckpoint, best
from holdfast.sidecar.storage import POSSIBLY_PARTIAL, CheckpointBackend, Remaining
from holdfast.train.notice import announcement_file

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# Which checkpoint to persist next.

RETRY_S, RETRY_CAP_S = 2.0, 60.0


class Failure(Struct, frozen=True):
    """A failed attempt. `retry_at_s` is when the next attempt may start; None: not before the checkpoint changes."""

    content: tuple[FileEntry, ...]
    attempts: int
    retry_at_s: float | None
    reason: str
    lacks_part: bool = False
    """Only the part of another worker is missing."""


def next_to_persist(
    scans: Sequence[FolderScan],
    done: Mapping[CheckpointName, tuple[FileEntry, ...]],
    failures: Mapping[CheckpointName, Failure],
    *,
    keep: int,
    now_s: float,
    best: CheckpointName | None = None,
) -> FolderScan | None:
    """The newest complete checkpoint whose current content is not persisted."""
    for scan in within_retention(scans, keep, best):
        failure = failures.get(scan.name)
        is_due = failure is None or failure.content != scan.content or _is_due(failure, now_s)
        if is_due and done.get(scan.name) != scan.content:
            return scan
    return None


def within_retention(scans: Sequence[FolderScan], keep: int, best: CheckpointName | None = None) -> list[FolderScan]:
    """The complete checkpoints, newest first, without those that retention would delete at once."""
    complete = sorted((scan for scan in scans if scan.complete), key=lambda scan: scan.name, reverse=True)
    epochs = sorted({scan.name.epoch for scan in complete}, reverse=True)[:keep]
    return [scan for scan in complete if scan.name.epoch in epochs or scan.name == best]


def record_failure(
    before: Failure | None, scan: FolderScan, reason: str, *, now_s: float, is_transient: bool, lacks_part: bool = False
) -> Failure:
    attempts = before.attempts + 1 if before is not None and before.content == scan.content else 1
    retry_at_s = now_s + min(RETRY_CAP_S, RETRY_S * 2.0 ** min(attempts - 1, 30)) if is_transient else None
    return Failure(scan.content, attempts, retry_at_s, reason, lacks_part)


def _is_due(failure: Failure, now_s: float) -> bool:
    return failure.retry_at_s is not None and now_s >= failure.retry_at_s


# Notices: how the sidecar asks the training to save now, and detects that the training has saved.

# The sidecar does not wait longer for a save.
MOST_S = 60.0

Contents: TypeAlias = Mapping[CheckpointName, tuple[FileEntry, ...]]


def write_notice(file: Path, reason: str) -> None:
    """The file appears in one piece. An existing file is replaced, which is a new notice."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    # A new file: the training can write to the folder too, and an existing file at this path may be a link.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{' '.join(reason.split())}\n")
    os.replace(partial, file)  # noqa: PTH105  # unlike Path.rename, it replaces on every system


def trainer_saves_on_notice(file: Path) -> bool:
    """Whether the training has announced that it saves on notice: the sidecar waits for no other training."""
    return announcement_file(file).exists()


def contents(scans: Iterable[FolderScan]) -> Contents:
    return {scan.name: scan.content for scan in scans}


def checkpoint_saved_since(before: Contents, scans: Iterable[FolderScan]) -> CheckpointName | None:
    """A complete checkpoint that was written since `before`."""
    written = (scan for scan in scans if scan.complete and before.get(scan.name) != scan.content)
    return next((scan.name for scan in written), None)


def save_timeout_s(grace_s: float) -> float:
    """How long to wait for a save. The rest of the grace period is for the training to exit and for the upload."""
    return min(MOST_S, grace_s * 2 / 3)


SCAN_INTERVAL_S = 1.0
# The wait for the parts of other workers after the training has ended: a survivor of a failure has 30 s to upload.
PARTS_S = 40.0
MOST_REASON = 1000


class CheckpointPersister:
    """`on_checkpoint` gets the outcome of each checkpoint; `about` is called for each save; `wall` is the wall clock.

    needed: the checkpoint that the attempt resumed from, and the attempt's own copy of that checkpoint.
    best_by: the metric that selects the best checkpoint. reported: the metrics at the end of an epoch, as far as known.
    is_over: checkpoints that the attempt saves from now on no longer count. Checkpoints that were complete before are
    still persisted, since the next attempt may resume from them. Nothing is deleted, since that attempt may be reading.
    """

    def __init__(
        self,
        backend: CheckpointBackend,
        *,
        keep: int,
        needed: set[CheckpointName],
        about: Callable[[], SaveInfo],
        on_checkpoint: Callable[[CheckpointReport], None],
        wall: Callable[[], float],
        is_over: Callable[[], bool],
        scan_interval_s: float = SCAN_INTERVAL_S,
        best_by: Metric = "loss",
        reported: Callable[[int], Mapping[str, float]] = lambda _: {},
    ) -> None:
        self._backend = backend
        self._retention = keep
        self._needed = needed
        self._about = about
        self._on_checkpoint = on_checkpoint
        self._wall = wall
        self._is_over = is_over
        self._scan_interval_s = scan_interval_s
        self._best_by: Metric = best_by
        self._reported = reported
        self._best: StoredCheckpoint | None = None
        self._pinned: Counter[CheckpointName] = Counter()
        self._scans: list[FolderScan] = []
        self._done: dict[CheckpointName, tuple[FileEntry, ...]] = {}
        self._failures: dict[CheckpointName, Failure] = {}
        self._scan_lock = asyncio.Lock()
        self._persist_lock = asyncio.Lock()
        self._is_ending = False
        self.unpersisted: list[CheckpointName] = []
        """After the end of the training: the complete checkpoints that are not persisted."""
        self.newest_persisted: FolderScan | None = None
        """The newest checkpoint that is persisted."""

    async def run(self) -> None:
        """Scan and persist concurrently: the training may answer a notice while an upload is in progress."""
        async with asyncio.TaskGroup() as tasks:
            while not self._is_ending:
                scans = await self.scan()
                for scan in scans:
                    if scan.refused:
                        self._note_failure(scan, UnsafeContent(scan.why))
                if not self._persist_lock.locked() and self._next(scans) is not None:
                    tasks.create_task(self.persist_next(scans))
                await asyncio.sleep(self._scan_interval_s)

    async def scan(self) -> list[FolderScan]:
        now_s = asyncio.get_running_loop().time()
        return await self._scan_with(lambda: self._backend.scan(now_s))

    @contextlib.contextmanager
    def pinned(self, name: CheckpointName) -> Iterator[None]:
        """Inside the block, retention does not delete this checkpoint: a backup reads it."""
        self._pinned[name] += 1
        try:
            yield
        finally:
            self._pinned[name] -= 1

    async def request_save(
        self, send_notice: Callable[[], None], timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> CheckpointName | None:
        """Send a notice, and wait for the checkpoint that answers it; None when no checkpoint appears in time."""
        before, worker0_before = contents(await self.scan()), await self._worker0_checkpoints()
        send_notice()
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline_s and not is_cancelled():
            if (name := checkpoint_saved_since(before, await self.scan())) is not None:
                return name
            if worker0_before is not None:
                name = checkpoint_saved_since(contents(worker0_before), await self._worker0_checkpoints() or [])
                if name is not None:
                    return name
                await asyncio.sleep(self._scan_interval_s)
            await asyncio.sleep(self._scan_interval_s / 4)
        return None

    async def persist_next(self, scans: list[FolderScan]) -> None:
        """Persist one checkpoint, and delete those beyond retention."""
        async with self._persist_lock:
            scan = self._next(scans)
            if scan is None:
                return
            try:
                was_persisted = await asyncio.to_thread(self._backend.is_persisted, scan)
                if not was_persisted:
                    self._report_begin(scan)
                    await asyncio.to_thread(self._backend.persist, scan, self._about(), self._reported(scan.name.epoch))
            except (CheckpointError, OSError) as error:
                self._note_failure(scan, error)
                return
            await self._note_persisted(scan, scans, is_new=not was_persisted)

    async def persist_remaining(self, *, succeeded: bool = False) -> None:
        """The training has ended: persist the remaining checkpoints, and retry until all are persisted.

        A training that succeeded has left no partial checkpoint. The part of a killed worker never arrives: the wait
        for parts is as long as this worker's own upload took, plus `PARTS_S`.
        """
        self._is_ending = True
        async with self._persist_lock:
            self._failures.clear()
        clock = asyncio.get_running_loop().time
        began_s = clock()
        uploaded_s: float | None = None
        while self._update_unpersisted(
            scans := _trust_partial(await self._scan_with(self._backend.final_scan), trust=succeeded)
        ):
            if self._next(scans) is not None:
                await self.persist_next(scans)
                continue
            failures = [self._failures[name] for name in self.unpersisted]
            if self._is_over() or all(failure.retry_at_s is None for failure in failures):
                return
            if not all(failure.lacks_part for failure in failures):
                uploaded_s = None
            elif uploaded_s is None:
                uploaded_s = clock()
            elif clock() - uploaded_s > PARTS_S + (uploaded_s - began_s):
                log.warning("parts of other workers did not come", checkpoints=[str(name) for name in self.unpersisted])
                return
            await asyncio.sleep(self._scan_interval_s / 4)

    async def _worker0_checkpoints(self) -> list[FolderScan] | None:
        """A worker that does not save must run until worker 0 has saved: every training step needs all workers."""
        try:
            return await asyncio.to_thread(self._backend.worker0_checkpoints)
        except (CheckpointError, OSError) as error:
            log.info("can't see what worker 0 has kept", reason=str(error))
            return None

    async def _scan_with(self, scan_folders: Callable[[], list[FolderScan]]) -> list[FolderScan]:
        """The result of the scan; the last result when the scan fails or the attempt is over."""
        async with self._scan_lock:
            try:
                if not self._is_over():
                    self._scans = await asyncio.to_thread(scan_folders)
            except OSError as error:
                log.warning("can't look for checkpoints", reason=str(error))
            return self._scans

    @property
    def needs_exit_code(self) -> bool:
        """Whether the exit code of the training decides if a checkpoint is complete."""
        return _trust_partial(self._scans, trust=True) != self._scans

    def _update_unpersisted(self, scans: list[FolderScan]) -> bool:
        complete = within_retention(scans, self._retention, self._best_of(scans))
        self.unpersisted = [scan.name for scan in complete if not self._is_done(scan)]
        return bool(self.unpersisted)

    def _is_done(self, scan: FolderScan) -> bool:
        return self._done.get(scan.name) == scan.content

    def _next(self, scans: list[FolderScan]) -> FolderScan | None:
        now_s = asyncio.get_running_loop().time()
        best = self._best_of(scans)
        return next_to_persist(scans, self._done, self._failures, keep=self._retention, now_s=now_s, best=best)

    def _best_of(self, scans: list[FolderScan]) -> CheckpointName | None:
        """The best of these and of the persisted checkpoints: a training may save faster than the sidecar persists."""
        found = [
            StoredCheckpoint(scan.name, valid=True, metrics=measured(scan.declared, self._reported(scan.name.epoch)))
            for scan in scans
            # A part does not count: the other workers may have deleted their parts by now.
            if scan.complete and (scan.declared is None or scan.declared.all_shards_present)
        ]
        present = {scan.name for scan in scans}
        if self._best is not None and self._best.name not in present:
            found.append(self._best)
        top = best(found, self._best_by)
        return top.name if top is not None else None

    def _report_begin(self, scan: FolderScan) -> None:
        failure = self._failures.get(scan.name)
        if self._backend.outcome == "uploaded" and (failure is None or failure.content != scan.content):
            self._report(scan, "completed")

    async def _note_persisted(self, scan: FolderScan, scans: list[FolderScan], *, is_new: bool) -> None:
        self._done[scan.name] = scan.content
        self._failures.pop(scan.name, None)
        present = {each.name for each in scans}
        self._done = {name: content for name, content in self._done.items() if name in present}
        if is_new and (self.newest_persisted is None or self.newest_persisted.name <= scan.name):
            self.newest_persisted = scan
        remaining = await self._apply_retention(scans)
        if remaining is not None:
            self._best = remaining.best
        if not is_new and scan.name.folder_name in {name.folder_name for name in self._needed}:
            return  # the copy that this attempt resumed from
        log.info("checkpoint kept", checkpoint=str(scan.name), why=scan.why, kept=remaining and remaining.epochs)
        self._report(scan, self._backend.outcome, remaining=remaining)

    async def _apply_retention(self, scans: list[FolderScan]) -> Remaining | None:
        if self._is_over():
            return None
        # Once this attempt has saved, all workers have restored; RESUME_FROM links to the attempt's own copy.
        needed = {
            name
            for name in self._needed
            if self.newest_persisted is None or name.attempt == self.newest_persisted.name.attempt
        }
        needed.update(scan.name for scan in scans if scan.name == self._best_of(scans) and not self._is_done(scan))
        needed.update(name for name, readers in self._pinned.items() if readers)
        try:
            return await asyncio.to_thread(self._backend.apply_retention, scans, self._retention, needed, self._best_by)
        except (CheckpointError, OSError) as error:
            log.warning("old checkpoints could not be deleted", reason=str(error))
            return None

    def _note_failure(self, scan: FolderScan, error: Exception) -> None:
        before, reason = self._failures.get(scan.name), str(error)
        now_s = asyncio.get_running_loop().time()
        self._failures[scan.name] = record_failure(
            before,
            scan,
            reason,
            now_s=now_s,
            is_transient=not isinstance(error, UnsafeContent),
            lacks_part=isinstance(error, MissingPart),
        )
        if isinstance(error, Incomplete):
            log.info("checkpoint not kept yet", checkpoint=str(scan.name), reason=reason)
        elif before is None or before.reason != reason:
            log.warning("checkpoint not kept", checkpoint=str(scan.name), reason=reason)
            self._report(scan, "failed", reason=reason)

    def _report(
        self, scan: FolderScan, outcome: Outcome, *, remaining: Remaining | None = None, reason: str = ""
    ) -> None:
        self._on_checkpoint(
            CheckpointReport(
                path=self._backend.address(scan.name),
                epoch=scan.epochs_done,
                step=scan.step,
                outcome=outcome,
                reason=reason[:MOST_REASON],
                valid_count=remaining.epochs if remaining is not None else None,
                best=self._backend.address(remaining.best.name)
                if remaining is not None and remaining.best is not None
                else None,
                at=self._wall(),
            )
        )


def _trust_partial(scans: list[FolderScan], *, trust: bool) -> list[FolderScan]:
    return [
        scan._replace(complete=True, why="the training ended well after it")
        if trust and scan.why == POSSIBLY_PARTIAL and scan.content
        else scan
        for scan in scans
    ]
