"""Watches what the training saves and keeps it: one at a time, the newest first, whatever goes wrong with the last."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import structlog
from msgspec import Struct

from holdfast.api.reports import Checkpoint, Outcome
from holdfast.checkpoints.completeness import FolderScan, measured
from holdfast.checkpoints.errors import CheckpointError, Incomplete, MissingPart, UnsafeContent
from holdfast.checkpoints.files import FileEntry
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo
from holdfast.checkpoints.retention import Metric, StoredCheckpoint, best
from holdfast.sidecar.storage import POSSIBLY_PARTIAL, CheckpointBackend, Remaining
from holdfast.train.notice import announcement_file

# Which checkpoint is to be kept next.

RETRY_S, RETRY_CAP_S = 2.0, 60.0


class Failure(Struct, frozen=True):
    """A try that did not work. `again_s` is when the next may begin; None: not before the checkpoint changes."""

    content: tuple[FileEntry, ...]
    tries: int
    again_s: float | None
    reason: str
    lacks_part: bool = False
    """All that is missing is the part of another worker."""


def next_to_persist(
    looks: Sequence[FolderScan],
    done: Mapping[CheckpointName, tuple[FileEntry, ...]],
    failures: Mapping[CheckpointName, Failure],
    *,
    keep: int,
    now_s: float,
    best: CheckpointName | None = None,
) -> FolderScan | None:
    """The newest complete one that is not kept as it is now."""
    for looked in within_retention(looks, keep, best):
        failure = failures.get(looked.name)
        is_due = failure is None or failure.content != looked.content or _is_due(failure, now_s)
        if is_due and done.get(looked.name) != looked.content:
            return looked
    return None


def within_retention(looks: Sequence[FolderScan], keep: int, best: CheckpointName | None = None) -> list[FolderScan]:
    """Those that are complete, newest first, without those that would be deleted at once."""
    complete = sorted((looked for looked in looks if looked.complete), key=lambda looked: looked.name, reverse=True)
    epochs = sorted({looked.name.epoch for looked in complete}, reverse=True)[:keep]
    return [looked for looked in complete if looked.name.epoch in epochs or looked.name == best]


def record_failure(
    before: Failure | None, looked: FolderScan, reason: str, *, now_s: float, passes: bool, lacks_part: bool = False
) -> Failure:
    tries = before.tries + 1 if before is not None and before.content == looked.content else 1
    again_s = now_s + min(RETRY_CAP_S, RETRY_S * 2.0 ** min(tries - 1, 30)) if passes else None
    return Failure(looked.content, tries, again_s, reason, lacks_part)


def _is_due(failure: Failure, now_s: float) -> bool:
    return failure.again_s is not None and now_s >= failure.again_s


# Asking the training to save now, and telling when it has.

# A save that takes longer is not waited for.
MOST_S = 60.0

Contents: TypeAlias = Mapping[CheckpointName, tuple[FileEntry, ...]]


def write_notice(file: Path, reason: str) -> None:
    """The file appears whole; one that is there already is replaced, which is a notice of its own."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    # Made anew: the training shares the folder, and what is in this place may be a link.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{' '.join(reason.split())}\n")
    os.replace(partial, file)  # noqa: PTH105  # replaces on every system, as it says


def trainer_saves_on_notice(file: Path) -> bool:
    """Whether the training has said that it answers notices: nobody waits for one that does not know them."""
    return announcement_file(file).exists()


def contents(looks: Iterable[FolderScan]) -> Contents:
    return {looked.name: looked.content for looked in looks}


def checkpoint_saved_since(before: Contents, looks: Iterable[FolderScan]) -> CheckpointName | None:
    """The checkpoint that was written since `before`, and is complete."""
    written = (looked for looked in looks if looked.complete and before.get(looked.name) != looked.content)
    return next((looked.name for looked in written), None)


def save_timeout_s(grace_s: float) -> float:
    """How long a save is waited for: the rest is for the training to end, and for what it saved to be kept."""
    return min(MOST_S, grace_s * 2 / 3)


LOOK_S = 1.0
# For the parts of other workers, when the training has ended: a survivor of a failure has 30 s to upload.
PARTS_S = 40.0
MOST_REASON = 1000

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class CheckpointPersister:
    """`tell` hears what became of each; `about` is asked when one is kept, and `wall` is the clock of the world.

    needed: what the attempt resumed from, and its own copy of it.
    by: what the best checkpoint is chosen by. reported: the metrics at the end of an epoch, as far as they are known.
    is_over: nothing counts any more that the attempt saves from now on. What was complete before is still kept, since
    the next attempt may go on from it, and nothing is deleted, since it may be reading that.
    """

    def __init__(
        self,
        place: CheckpointBackend,
        *,
        keep: int,
        needed: set[CheckpointName],
        about: Callable[[], SaveInfo],
        tell: Callable[[Checkpoint], None],
        wall: Callable[[], float],
        is_over: Callable[[], bool],
        look_s: float = LOOK_S,
        by: Metric = "loss",
        reported: Callable[[int], Mapping[str, float]] = lambda _: {},
    ) -> None:
        self._place = place
        self._keep = keep
        self._needed = needed
        self._about = about
        self._tell = tell
        self._wall = wall
        self._is_over = is_over
        self._look_s = look_s
        self._by: Metric = by
        self._reported = reported
        self._best: StoredCheckpoint | None = None
        self._looks: list[FolderScan] = []
        self._done: dict[CheckpointName, tuple[FileEntry, ...]] = {}
        self._failures: dict[CheckpointName, Failure] = {}
        self._looking = asyncio.Lock()
        self._working = asyncio.Lock()
        self._is_ending = False
        self.unpersisted: list[CheckpointName] = []
        """When the training has ended: what is complete, and not kept."""
        self.newest_persisted: FolderScan | None = None
        """The newest that is kept."""

    async def run(self) -> None:
        """Look and keep at the same time: a notice may be answered while an upload is under way."""
        async with asyncio.TaskGroup() as tasks:
            while not self._is_ending:
                looks = await self.scan()
                for looked in looks:
                    if looked.refused:
                        self._failed(looked, UnsafeContent(looked.why))
                if not self._working.locked() and self._next(looks) is not None:
                    tasks.create_task(self.persist_next(looks))
                await asyncio.sleep(self._look_s)

    async def scan(self) -> list[FolderScan]:
        now_s = asyncio.get_running_loop().time()
        return await self._looked(lambda: self._place.look(now_s))

    async def request_save(
        self, give: Callable[[], None], patience_s: float, is_off: Callable[[], bool]
    ) -> CheckpointName | None:
        """Give a notice, and wait for the checkpoint that answers it; None when it does not come in time."""
        before, elsewhere = contents(await self.scan()), await self._worker0_checkpoints()
        give()
        deadline_s = asyncio.get_running_loop().time() + patience_s
        while asyncio.get_running_loop().time() < deadline_s and not is_off():
            if (name := checkpoint_saved_since(before, await self.scan())) is not None:
                return name
            if elsewhere is not None:
                name = checkpoint_saved_since(contents(elsewhere), await self._worker0_checkpoints() or [])
                if name is not None:
                    return name
                await asyncio.sleep(self._look_s)
            await asyncio.sleep(self._look_s / 4)
        return None

    async def persist_next(self, looks: list[FolderScan]) -> None:
        """Keep one, and delete what is too old."""
        async with self._working:
            looked = self._next(looks)
            if looked is None:
                return
            try:
                was_kept = await asyncio.to_thread(self._place.is_persisted, looked)
                if not was_kept:
                    self._begin(looked)
                    await asyncio.to_thread(
                        self._place.persist, looked, self._about(), self._reported(looked.name.epoch)
                    )
            except (CheckpointError, OSError) as error:
                self._failed(looked, error)
                return
            await self._kept(looked, looks, is_new=not was_kept)

    async def persist_remaining(self, *, ended_well: bool = False) -> None:
        """The training has ended: keep what is left, and try until it is kept.

        One that ended well has not left half a checkpoint behind. The part of a worker that was killed never comes:
        parts are waited for as long as the own upload has taken, and `PARTS_S` more.
        """
        self._is_ending = True
        async with self._working:
            self._failures.clear()
        clock = asyncio.get_running_loop().time
        began_s = clock()
        uploaded_s: float | None = None
        while self._note_left(looks := _trusted(await self._looked(self._place.final_scan), trust=ended_well)):
            if self._next(looks) is not None:
                await self.persist_next(looks)
                continue
            failures = [self._failures[name] for name in self.unpersisted]
            if self._is_over() or all(failure.again_s is None for failure in failures):
                return
            if not all(failure.lacks_part for failure in failures):
                uploaded_s = None
            elif uploaded_s is None:
                uploaded_s = clock()
            elif clock() - uploaded_s > PARTS_S + (uploaded_s - began_s):
                log.warning("parts of other workers did not come", checkpoints=[str(name) for name in self.unpersisted])
                return
            await asyncio.sleep(self._look_s / 4)

    async def _worker0_checkpoints(self) -> list[FolderScan] | None:
        """A worker that does not save must live until worker 0 has: their steps are steps of all."""
        try:
            return await asyncio.to_thread(self._place.worker0_checkpoints)
        except (CheckpointError, OSError) as error:
            log.info("can't see what worker 0 has kept", reason=str(error))
            return None

    async def _looked(self, look: Callable[[], list[FolderScan]]) -> list[FolderScan]:
        """What is there, or was when it could last be seen, or when the attempt was over."""
        async with self._looking:
            try:
                if not self._is_over():
                    self._looks = await asyncio.to_thread(look)
            except OSError as error:
                log.warning("can't look for checkpoints", reason=str(error))
            return self._looks

    @property
    def needs_exit_code(self) -> bool:
        """Whether it matters how the training ended."""
        return _trusted(self._looks, trust=True) != self._looks

    def _note_left(self, looks: list[FolderScan]) -> bool:
        complete = within_retention(looks, self._keep, self._best_of(looks))
        self.unpersisted = [looked.name for looked in complete if not self._is_done(looked)]
        return bool(self.unpersisted)

    def _is_done(self, looked: FolderScan) -> bool:
        return self._done.get(looked.name) == looked.content

    def _next(self, looks: list[FolderScan]) -> FolderScan | None:
        now_s = asyncio.get_running_loop().time()
        best = self._best_of(looks)
        return next_to_persist(looks, self._done, self._failures, keep=self._keep, now_s=now_s, best=best)

    def _best_of(self, looks: list[FolderScan]) -> CheckpointName | None:
        """The best of these and of what is kept: a training may save faster than its checkpoints can be kept."""
        found = [
            StoredCheckpoint(
                looked.name, valid=True, metrics=measured(looked.declared, self._reported(looked.name.epoch))
            )
            for looked in looks
            # Of a part, the other workers may have deleted theirs by now.
            if looked.complete and (looked.declared is None or looked.declared.all_shards_present)
        ]
        there = {looked.name for looked in looks}
        if self._best is not None and self._best.name not in there:
            found.append(self._best)
        top = best(found, self._by)
        return top.name if top is not None else None

    def _begin(self, looked: FolderScan) -> None:
        failure = self._failures.get(looked.name)
        if self._place.outcome == "uploaded" and (failure is None or failure.content != looked.content):
            self._report(looked, "completed")

    async def _kept(self, looked: FolderScan, looks: list[FolderScan], *, is_new: bool) -> None:
        self._done[looked.name] = looked.content
        self._failures.pop(looked.name, None)
        there = {one.name for one in looks}
        self._done = {name: content for name, content in self._done.items() if name in there}
        if is_new and (self.newest_persisted is None or self.newest_persisted.name <= looked.name):
            self.newest_persisted = looked
        unpersisted = await self._apply_retention(looks)
        if unpersisted is not None:
            self._best = unpersisted.best
        if not is_new and looked.name.folder_name in {name.folder_name for name in self._needed}:
            return  # the copy that this attempt was given
        log.info(
            "checkpoint kept", checkpoint=str(looked.name), why=looked.why, kept=unpersisted and unpersisted.epochs
        )
        self._report(looked, self._place.outcome, unpersisted=unpersisted)

    async def _apply_retention(self, looks: list[FolderScan]) -> Remaining | None:
        if self._is_over():
            return None
        # Once this attempt has saved, everybody has read what it began with; RESUME_FROM leads to its own copy of that.
        needed = {
            name
            for name in self._needed
            if self.newest_persisted is None or name.attempt == self.newest_persisted.name.attempt
        }
        needed.update(
            looked.name for looked in looks if looked.name == self._best_of(looks) and not self._is_done(looked)
        )
        try:
            return await asyncio.to_thread(self._place.apply_retention, looks, self._keep, needed, self._by)
        except (CheckpointError, OSError) as error:
            log.warning("old checkpoints could not be deleted", reason=str(error))
            return None

    def _failed(self, looked: FolderScan, error: Exception) -> None:
        before, reason = self._failures.get(looked.name), str(error)
        now_s = asyncio.get_running_loop().time()
        self._failures[looked.name] = record_failure(
            before,
            looked,
            reason,
            now_s=now_s,
            passes=not isinstance(error, UnsafeContent),
            lacks_part=isinstance(error, MissingPart),
        )
        if isinstance(error, Incomplete):
            log.info("checkpoint not kept yet", checkpoint=str(looked.name), reason=reason)
        elif before is None or before.reason != reason:
            log.warning("checkpoint not kept", checkpoint=str(looked.name), reason=reason)
            self._report(looked, "failed", reason=reason)

    def _report(
        self, looked: FolderScan, outcome: Outcome, *, unpersisted: Remaining | None = None, reason: str = ""
    ) -> None:
        self._tell(
            Checkpoint(
                path=self._place.address(looked.name),
                epoch=looked.epochs_done,
                step=looked.step,
                outcome=outcome,
                reason=reason[:MOST_REASON],
                kept=unpersisted.epochs if unpersisted is not None else None,
                best=self._place.address(unpersisted.best.name)
                if unpersisted is not None and unpersisted.best is not None
                else None,
                at=self._wall(),
            )
        )


def _trusted(looks: list[FolderScan], *, trust: bool) -> list[FolderScan]:
    return [
        looked._replace(complete=True, why="the training ended well after it")
        if trust and looked.why == POSSIBLY_PARTIAL and looked.content
        else looked
        for looked in looks
    ]
