"""Downloads the events of a job from its object store, so that a TensorBoard that can't read the store shows them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from holdfast.checkpoints.errors import CheckpointError, UnsafeContent
from holdfast.checkpoints.manifest import MAX_FILES, check_path
from holdfast.checkpoints.object_store import Bucket, Object
from holdfast.checkpoints.settings import open_bucket
from holdfast.sidecar.settings import BadSetting

# The pause between two passes doubles while nothing is new: a job that has ended costs a request a minute.
SHORTEST_S, LONGEST_S = 5.0, 60.0
# The name of the folder beside the checkpoints.
FOLDER = "tensorboard"

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


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

    def _update(self, obj: Object) -> bool:
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
        raise BadSetting("HOLDFAST_STORE and TENSORBOARD_DIR are not set: the operator runs this beside TensorBoard")
    return Events(Path(folder), open_bucket(store, environ))
