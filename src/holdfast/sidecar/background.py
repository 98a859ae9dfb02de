"""What a sidecar does over and over, all at the same time. No error of one ends another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import structlog

from holdfast.checkpoints.errors import CheckpointError
from holdfast.checkpoints.files import FileEntry, FileStamp, Listing, listing, sha256_of
from holdfast.checkpoints.object_store import Bucket

RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BackgroundTasks:
    """Loops that never end by themselves: what breaks one is logged, and it begins anew."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def keep_running(self, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_again(run)))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _again(run: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await run()
            return
        except Exception:
            # A sidecar that dies takes the training with it, whose probes it answers.
            log.exception("an error in holdfast; it goes on")
            await asyncio.sleep(RETRY_S)


@contextlib.asynccontextmanager
async def loops() -> AsyncIterator[BackgroundTasks]:
    """They run until the block ends."""
    running = BackgroundTasks()
    try:
        yield running
    finally:
        await running.end()


async def run_unless_stopped(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Whether the work was done before `stop` was set."""
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        await working
        return True
    working.cancel()
    return False


# Brings what a training writes for TensorBoard to the object store, where TensorBoard reads it.
#
# On a volume it lies where it is written. Files of event logs only grow, so that one that has changed is put again.

EVERY_S = 30.0
PARTS_AT_ONCE = 2


class TensorboardSync:
    """A convenience: what can't be brought is tried again with the next look, and nobody waits for it.

    `must_hold` raises while another job may be using the place.
    """

    def __init__(self, folder: Path, bucket: Bucket, must_hold: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._bucket = bucket
        self._must_hold = must_hold
        self._brought: dict[str, FileStamp] = {}
        self._trouble = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self.upload_new)

    def upload_new(self) -> None:
        try:
            if self._folder.is_dir():
                with listing(self._folder) as there:
                    for entry in there.content:
                        if self._brought.get(entry.path) != entry.stamp:
                            self._put(there, entry)
        except (CheckpointError, OSError) as error:
            if str(error) != self._trouble:
                log.warning("TensorBoard's files are not brought to the store", reason=str(error))
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _put(self, there: Listing, entry: FileEntry) -> None:
        """A file that is written to meanwhile is not put, or put again with the next look."""
        self._must_hold()
        key = f"{self._folder.name}/{entry.path}"
        with there.reading(entry) as file:
            self._bucket.put_file(key, file, entry.stamp.size, sha256_of(file), parts_at_once=PARTS_AT_ONCE)
        self._brought[entry.path] = entry.stamp
