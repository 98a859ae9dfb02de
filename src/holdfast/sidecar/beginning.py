"""Tries until what the attempt resumes from is in its place, and tells what was found on the way."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from holdfast.checkpoints.errors import CheckpointError
from holdfast.checkpoints.lease import Lease
from holdfast.checkpoints.manifest import SaveInfo
from holdfast.checkpoints.resume import DecisionPending
from holdfast.checkpoints.store import Store
from holdfast.reports.wire import Checkpoint, Outcome
from holdfast.sidecar.settings import Checkpoints, Settings
from holdfast.sidecar.starting import Restored, is_retryable, restore
from holdfast.sidecar.state import ResumeInfo
from holdfast.train.resuming import resume_position

RETRY_S, RETRY_CAP_S = 1.0, 30.0
UNDECIDED_S = 0.5
POLLS_PER_LINE = 60
MOST_REASON = 1000

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class RestoreLoop:
    """`open_store` may fail as a restore does; `tell` hears of trouble, and `wall` is the clock of the world.

    lease: what worker 0 needs before it writes to the store.
    """

    def __init__(
        self,
        settings: Settings,
        place: Checkpoints,
        open_store: Callable[[], Store],
        *,
        environ: Mapping[str, str],
        about: Callable[[], SaveInfo],
        tell: Callable[[Checkpoint], None],
        wall: Callable[[], float],
        lease: Lease | None,
    ) -> None:
        self._settings = settings
        self._place = place
        self._open_store = open_store
        self._environ = environ
        self._about = about
        self._tell = tell
        self._wall = wall
        self._lease = lease

    async def run(self) -> ResumeInfo:
        """Raises what no retry mends."""
        tries = 0
        while True:
            try:
                store = await asyncio.to_thread(self._open_store)
                return self._began(await asyncio.to_thread(self._restore, store), store.address)
            except (CheckpointError, OSError) as error:
                if isinstance(error, CheckpointError) and not is_retryable(error):
                    raise
                tries += 1
                await asyncio.sleep(self._pause_s(error, tries))

    def _restore(self, store: Store) -> Restored:
        if self._lease is not None:
            self._lease.acquire(store)
        return restore(
            self._place,
            store,
            attempt=self._settings.attempt,
            index=self._settings.index,
            about=self._about(),
            environ=self._environ,
            note=lambda sentence: log.warning("a checkpoint is not resumed from", reason=sentence),
        )

    def _pause_s(self, error: Exception, tries: int) -> float:
        if isinstance(error, DecisionPending):
            if tries % POLLS_PER_LINE == 0:
                log.info("waiting for worker 0", reason=str(error))
            return UNDECIDED_S
        log.warning("can't have the checkpoint to resume from yet; it is tried again", reason=str(error), tries=tries)
        if tries == 1:
            self._report(self._place.store or str(self._place.folder), 0, "unrestored", str(error))
        return min(RETRY_CAP_S, RETRY_S * 2.0 ** min(tries - 1, 30))

    def _began(self, restored: Restored, address: str) -> ResumeInfo:
        for aside in restored.aside:
            self._report(f"{address}/{aside.name.folder}", aside.name.epoch, "quarantined", aside.reason)
        name = restored.name
        if name is None:
            log.info("nothing to resume from")
            return ResumeInfo()
        log.info("resuming", checkpoint=str(name), address=restored.address)
        done, _ = resume_position(self._place.folder / name.folder_name)
        return ResumeInfo(restored.address, name.epoch, name.attempt, name.folder_name, done)

    def _report(self, path: str, epoch: int, outcome: Outcome, reason: str) -> None:
        entry = Checkpoint(path=path, epoch=epoch, outcome=outcome, reason=reason[:MOST_REASON], at=self._wall())
        self._tell(entry)
