"""The background loops of a sidecar. They run concurrently, and an error in one loop ends no other loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from holdfast.checkpoints.errors import CheckpointError, UnsafeContent
from holdfast.checkpoints.files import FileEntry, FileStamp, FolderListing, listing, sha256_of
from holdfast.checkpoints.manifest import MAX_FILES, check_path
from holdfast.checkpoints.object_store import Bucket, BucketObject
from holdfast.checkpoints.settings import open_bucket
from holdfast.sidecar.settings import InvalidSidecarSetting

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

    def _put(self, files: FolderListing, entry: FileEntry) -> None:
        """A file that the training writes to during the upload is skipped, or uploaded again in the next pass."""
        self._must_hold()
        key = f"{self._folder.name}/{entry.path}"
        with files.reading(entry) as file:
            self._bucket.put_file(key, file, entry.stamp.size, sha256_of(file), parts_at_once=PARTS_AT_ONCE)
        self._uploaded[entry.path] = entry.stamp


# Downloads the events of a job from its object store, so that a TensorBoard that can't read the store shows them.


# The pause between two passes doubles while nothing is new: a job that has ended costs a request a minute.
SHORTEST_S, LONGEST_S = 5.0, 60.0
# The name of the folder beside the checkpoints.
FOLDER = "tensorboard"


class Events:
    """A copy of the store's folder. TensorBoard holds files open, so a file that has grown is appended to."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self._folder = folder
        self._bucket = bucket
        self._error = ""

    async def run(self) -> None:
        pause_s = SHORTEST_S
        while True:
            has_changed = await asyncio.to_thread(self.download)
            pause_s = SHORTEST_S if has_changed else min(LONGEST_S, 2 * pause_s)
            await asyncio.sleep(pause_s)

    def download(self) -> bool:
        """Whether any file has changed. A failed download is retried in the next pass."""
        changed, error = 0, ""
        try:
            for obj in self._bucket.objects(FOLDER)[:MAX_FILES]:
                try:
                    changed += self._update(obj)
                except (UnsafeContent, OSError) as refusal:  # one bad name is no reason to hide the others
                    error = str(refusal)
        except CheckpointError as failure:
            error = str(failure)
        if error and error != self._error:
            log.warning("some events are not downloaded", reason=error)
        self._error = error
        return changed > 0

    def _update(self, obj: BucketObject) -> bool:
        path = obj.key.removeprefix(f"{FOLDER}/")
        check_path(path)
        file = self._folder / path
        local_size = file.stat().st_size if file.exists() else 0
        if local_size == obj.size:
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        offset = local_size if local_size < obj.size else 0
        with file.open("ab" if offset else "wb") as opened:
            for chunk in self._bucket.stream(obj.key, offset):
                opened.write(chunk)
        return True


def events(environ: Mapping[str, str]) -> Events:
    """The settings come from HOLDFAST_STORE and TENSORBOARD_DIR, which the operator sets."""
    store, folder = environ.get("HOLDFAST_STORE", ""), environ.get("TENSORBOARD_DIR", "")
    if not store or not folder:
        raise InvalidSidecarSetting(
            "HOLDFAST_STORE and TENSORBOARD_DIR are not set: the operator runs this beside TensorBoard"
        )
    return Events(Path(folder), open_bucket(store, environ))
