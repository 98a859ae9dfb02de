"""The background loops of a sidecar. They run concurrently, and an error in one loop ends no other loop."""

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
    """Loops that run until `end`. An error in a loop is logged, and the loop starts again."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_run_with_retries(run)))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _run_with_retries(run: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await run()
            return
        except Exception:
            # The sidecar answers the training container's probes: if the sidecar dies, the kubelet kills the training.
            log.exception("an error in holdfast; it goes on")
            await asyncio.sleep(RETRY_S)


@contextlib.asynccontextmanager
async def background_tasks() -> AsyncIterator[BackgroundTasks]:
    """Background tasks that run until the block ends."""
    tasks = BackgroundTasks()
    try:
        yield tasks
    finally:
        await tasks.end()


async def run_unless_stopped(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Whether the work finished before `stop` was set. Unfinished work is cancelled."""
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        await working
        return True
    working.cancel()
    return False


# Uploads the TensorBoard event files of a training to the object store, where TensorBoard reads them.
#
# On a volume no upload is needed. Event files only grow, so a file that has changed is uploaded again.

EVERY_S = 30.0
PARTS_AT_ONCE = 2


class TensorboardSync:
    """Best effort: a failed upload is retried in the next pass, and nothing waits for an upload.

    `must_hold` raises while another job may hold the lease of the store.
    """

    def __init__(self, folder: Path, bucket: Bucket, must_hold: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._bucket = bucket
        self._must_hold = must_hold
        self._uploaded: dict[str, FileStamp] = {}
        self._last_error = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self.upload_new)

    def upload_new(self) -> None:
        try:
            if self._folder.is_dir():
                with listing(self._folder) as files:
                    for entry in files.content:
                        if self._uploaded.get(entry.path) != entry.stamp:
                            self._put(files, entry)
        except (CheckpointError, OSError) as error:
            if str(error) != self._last_error:
                log.warning("TensorBoard's files are not brought to the store", reason=str(error))
            self._last_error = str(error)
        else:
            self._last_error = ""

    def _put(self, files: Listing, entry: FileEntry) -> None:
        """A file that the training writes to during the upload is skipped, or uploaded again in the next pass."""
        self._must_hold()
        key = f"{self._folder.name}/{entry.path}"
        with files.reading(entry) as file:
            self._bucket.put_file(key, file, entry.stamp.size, sha256_of(file), parts_at_once=PARTS_AT_ONCE)
        self._uploaded[entry.path] = entry.stamp
