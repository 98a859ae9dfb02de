"""Upload and restore of one checkpoint, in turns with obstore alone: the same files, as many of them at once."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import obstore
from obstore.store import S3Store

from holdfast.checkpoints.manifest import SaveInfo, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.obstore_bucket import PART_BYTES, READ_BYTES
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.unpack import map_in_threads
from holdfast.sidecar.storage import WORKERS
from tests.checkpoints.servers.server import BUCKET, Server

NAME = checkpoint_name(1, 0)
ABOUT = SaveInfo(job="bench", saved_at="2026-01-02T03:04:05Z")


class Taken(NamedTuple):
    """What one transfer took on the clock, and of this process's time on the cores."""

    wall_s: float
    cpu_s: float


class Compared(NamedTuple):
    raw: list[Taken]
    own: list[Taken]

    @property
    def share(self) -> float:
        """How fast holdfast is, as a part of obstore's own speed: each of its transfers beside the one before it."""
        return median(raw.wall_s / own.wall_s for raw, own in zip(self.raw, self.own, strict=True))


class Transfers:
    """`source` is the checkpoint, `scratch` where restores go."""

    def __init__(self, server: Server, source: Path, scratch: Path) -> None:
        self._raw = S3Store(
            BUCKET,
            prefix="raw",
            access_key_id=server.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=server.environ["AWS_SECRET_ACCESS_KEY"],
            region=server.environ["AWS_REGION"],
            endpoint=server.environ["AWS_ENDPOINT_URL"],
            client_options={"allow_http": True},
        )
        self._own = ObjectStore(open_bucket(server.address("own"), server.environ), workers=WORKERS)
        self._source = source
        self._scratch = scratch
        self._files = sorted(source.iterdir())

    def compare(self, rounds: int) -> tuple[Compared, Compared]:
        """Uploads, and restores."""
        uploads, restores = Compared([], []), Compared([], [])
        for _ in range(rounds):
            uploads.raw.append(taken(self._put_raw))
            uploads.own.append(taken(lambda: self._own.put(NAME, self._source, ABOUT)))
            restores.raw.append(self._restored(self._get_raw))
            restores.own.append(self._restored(lambda: self._own.get(NAME, self._scratch / NAME.folder_name)))
            self._own.delete(NAME)
            obstore.delete(self._raw, [file.name for file in self._files])
        return uploads, restores

    def _restored(self, work: Callable[[], object]) -> Taken:
        self._scratch.mkdir()
        try:
            return taken(work)
        finally:
            shutil.rmtree(self._scratch)

    def _put_raw(self) -> None:
        map_in_threads(self._put_file, self._files, WORKERS)

    def _get_raw(self) -> None:
        map_in_threads(self._get_file, self._files, WORKERS)

    def _put_file(self, file: Path) -> None:
        obstore.put(self._raw, file.name, file, chunk_size=PART_BYTES, max_concurrency=1)

    def _get_file(self, file: Path) -> None:
        with (self._scratch / file.name).open("wb", buffering=0) as opened:
            for chunk in obstore.get(self._raw, file.name).stream(min_chunk_size=READ_BYTES):
                opened.write(chunk)


def taken(work: Callable[[], object]) -> Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)
