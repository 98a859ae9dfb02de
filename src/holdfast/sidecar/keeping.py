"""Watches what the training saves and keeps it: one at a time, the newest first, whatever goes wrong with the last."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from holdfast.checkpoints.complete import Looked, measured
from holdfast.checkpoints.content import Entry
from holdfast.checkpoints.errors import CheckpointError, Incomplete, MissingPart, Refused
from holdfast.checkpoints.manifest import About
from holdfast.checkpoints.names import Name
from holdfast.checkpoints.retention import Kept, Metric, best
from holdfast.reports.wire import Checkpoint, Outcome
from holdfast.sidecar import notice
from holdfast.sidecar.choice import Failure, failed, next_to_keep, wanted
from holdfast.sidecar.places import DOUBTFUL, Place, Remaining

LOOK_S = 1.0
# For the parts of other workers, when the training has ended: a survivor of a failure has 30 s to upload.
PARTS_S = 40.0
MOST_REASON = 1000

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Keeping:
    """`tell` hears what became of each; `about` is asked when one is kept, and `wall` is the clock of the world.

    needed: what the attempt resumed from, and its own copy of it.
    by: what the best checkpoint is chosen by. reported: the metrics at the end of an epoch, as far as they are known.
    is_over: nothing counts any more that the attempt saves from now on. What was complete before is still kept, since
    the next attempt may go on from it, and nothing is deleted, since it may be reading that.
    """

    def __init__(
        self,
        place: Place,
        *,
        keep: int,
        needed: set[Name],
        about: Callable[[], About],
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
        self._best: Kept | None = None
        self._looks: list[Looked] = []
        self._done: dict[Name, tuple[Entry, ...]] = {}
        self._failures: dict[Name, Failure] = {}
        self._looking = asyncio.Lock()
        self._working = asyncio.Lock()
        self._is_ending = False
        self.left: list[Name] = []
        """When the training has ended: what is complete, and not kept."""
        self.last: Looked | None = None
        """The newest that is kept."""

    async def run(self) -> None:
        """Look and keep at the same time: a notice may be answered while an upload is under way."""
        async with asyncio.TaskGroup() as tasks:
            while not self._is_ending:
                looks = await self.look()
                for looked in looks:
                    if looked.refused:
                        self._failed(looked, Refused(looked.why))
                if not self._working.locked() and self._next(looks) is not None:
                    tasks.create_task(self.work(looks))
                await asyncio.sleep(self._look_s)

    async def look(self) -> list[Looked]:
        now_s = asyncio.get_running_loop().time()
        return await self._looked(lambda: self._place.look(now_s))

    async def ask(self, give: Callable[[], None], patience_s: float, is_off: Callable[[], bool]) -> Name | None:
        """Give a notice, and wait for the checkpoint that answers it; None when it does not come in time."""
        before, elsewhere = notice.contents(await self.look()), await self._elsewhere()
        give()
        deadline_s = asyncio.get_running_loop().time() + patience_s
        while asyncio.get_running_loop().time() < deadline_s and not is_off():
            if (name := notice.answer(before, await self.look())) is not None:
                return name
            if elsewhere is not None:
                name = notice.answer(notice.contents(elsewhere), await self._elsewhere() or [])
                if name is not None:
                    return name
                await asyncio.sleep(self._look_s)
            await asyncio.sleep(self._look_s / 4)
        return None

    async def work(self, looks: list[Looked]) -> None:
        """Keep one, and delete what is too old."""
        async with self._working:
            looked = self._next(looks)
            if looked is None:
                return
            try:
                was_kept = await asyncio.to_thread(self._place.is_kept, looked)
                if not was_kept:
                    self._begin(looked)
                    await asyncio.to_thread(self._place.keep, looked, self._about(), self._reported(looked.name.epoch))
            except (CheckpointError, OSError) as error:
                self._failed(looked, error)
                return
            await self._kept(looked, looks, is_new=not was_kept)

    async def finish(self, *, ended_well: bool = False) -> None:
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
        while self._note_left(looks := _trusted(await self._looked(self._place.last_look), trust=ended_well)):
            if self._next(looks) is not None:
                await self.work(looks)
                continue
            failures = [self._failures[name] for name in self.left]
            if self._is_over() or all(failure.again_s is None for failure in failures):
                return
            if not all(failure.lacks_part for failure in failures):
                uploaded_s = None
            elif uploaded_s is None:
                uploaded_s = clock()
            elif clock() - uploaded_s > PARTS_S + (uploaded_s - began_s):
                log.warning("parts of other workers did not come", checkpoints=[str(name) for name in self.left])
                return
            await asyncio.sleep(self._look_s / 4)

    async def _elsewhere(self) -> list[Looked] | None:
        """A worker that does not save must live until worker 0 has: their steps are steps of all."""
        try:
            return await asyncio.to_thread(self._place.elsewhere)
        except (CheckpointError, OSError) as error:
            log.info("can't see what worker 0 has kept", reason=str(error))
            return None

    async def _looked(self, look: Callable[[], list[Looked]]) -> list[Looked]:
        """What is there, or was when it could last be seen, or when the attempt was over."""
        async with self._looking:
            try:
                if not self._is_over():
                    self._looks = await asyncio.to_thread(look)
            except OSError as error:
                log.warning("can't look for checkpoints", reason=str(error))
            return self._looks

    @property
    def is_in_doubt(self) -> bool:
        """Whether it matters how the training ended."""
        return _trusted(self._looks, trust=True) != self._looks

    def _note_left(self, looks: list[Looked]) -> bool:
        complete = wanted(looks, self._keep, self._best_of(looks))
        self.left = [looked.name for looked in complete if not self._is_done(looked)]
        return bool(self.left)

    def _is_done(self, looked: Looked) -> bool:
        return self._done.get(looked.name) == looked.content

    def _next(self, looks: list[Looked]) -> Looked | None:
        now_s = asyncio.get_running_loop().time()
        best = self._best_of(looks)
        return next_to_keep(looks, self._done, self._failures, keep=self._keep, now_s=now_s, best=best)

    def _best_of(self, looks: list[Looked]) -> Name | None:
        """The best of these and of what is kept: a training may save faster than its checkpoints can be kept."""
        found = [
            Kept(looked.name, valid=True, metrics=measured(looked.declared, self._reported(looked.name.epoch)))
            for looked in looks
            # Of a part, the other workers may have deleted theirs by now.
            if looked.complete and (looked.declared is None or looked.declared.whole)
        ]
        there = {looked.name for looked in looks}
        if self._best is not None and self._best.name not in there:
            found.append(self._best)
        top = best(found, self._by)
        return top.name if top is not None else None

    def _begin(self, looked: Looked) -> None:
        failure = self._failures.get(looked.name)
        if self._place.outcome == "uploaded" and (failure is None or failure.content != looked.content):
            self._say(looked, "completed")

    async def _kept(self, looked: Looked, looks: list[Looked], *, is_new: bool) -> None:
        self._done[looked.name] = looked.content
        self._failures.pop(looked.name, None)
        there = {one.name for one in looks}
        self._done = {name: content for name, content in self._done.items() if name in there}
        if is_new and (self.last is None or self.last.name <= looked.name):
            self.last = looked
        left = await self._tidied(looks)
        if left is not None:
            self._best = left.best
        if not is_new and looked.name.leaf in {name.leaf for name in self._needed}:
            return  # the copy that this attempt was given
        log.info("checkpoint kept", checkpoint=str(looked.name), why=looked.why, kept=left and left.epochs)
        self._say(looked, self._place.outcome, left=left)

    async def _tidied(self, looks: list[Looked]) -> Remaining | None:
        if self._is_over():
            return None
        # Once this attempt has saved, everybody has read what it began with; RESUME_FROM leads to its own copy of that.
        needed = {name for name in self._needed if self.last is None or name.attempt == self.last.name.attempt}
        needed.update(
            looked.name for looked in looks if looked.name == self._best_of(looks) and not self._is_done(looked)
        )
        try:
            return await asyncio.to_thread(self._place.tidy, looks, self._keep, needed, self._by)
        except (CheckpointError, OSError) as error:
            log.warning("old checkpoints could not be deleted", reason=str(error))
            return None

    def _failed(self, looked: Looked, error: Exception) -> None:
        before, reason = self._failures.get(looked.name), str(error)
        now_s = asyncio.get_running_loop().time()
        self._failures[looked.name] = failed(
            before,
            looked,
            reason,
            now_s=now_s,
            passes=not isinstance(error, Refused),
            lacks_part=isinstance(error, MissingPart),
        )
        if isinstance(error, Incomplete):
            log.info("checkpoint not kept yet", checkpoint=str(looked.name), reason=reason)
        elif before is None or before.reason != reason:
            log.warning("checkpoint not kept", checkpoint=str(looked.name), reason=reason)
            self._say(looked, "failed", reason=reason)

    def _say(self, looked: Looked, outcome: Outcome, *, left: Remaining | None = None, reason: str = "") -> None:
        self._tell(
            Checkpoint(
                path=self._place.address(looked.name),
                epoch=looked.epochs_done,
                step=looked.step,
                outcome=outcome,
                reason=reason[:MOST_REASON],
                kept=left.epochs if left is not None else None,
                best=self._place.address(left.best.name) if left is not None and left.best is not None else None,
                at=self._wall(),
            )
        )


def _trusted(looks: list[Looked], *, trust: bool) -> list[Looked]:
    return [
        looked._replace(complete=True, why="the training ended well after it")
        if trust and looked.why == DOUBTFUL and looked.content
        else looked
        for looked in looks
    ]
