"""Where a worker's checkpoints are kept, and which part of that is this worker's: three cases, one shape.

On a volume that all workers share, worker 0 keeps for all. In an object store each worker puts what it has itself.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.api.reports import Outcome
from holdfast.checkpoints.completeness import (
    SETTLE_S,
    CheckpointWatcher,
    FolderScan,
    completed_before_exit,
    list_checkpoints,
    read_markers,
)
from holdfast.checkpoints.confined_files import opened
from holdfast.checkpoints.errors import Incomplete, UnsafeContent
from holdfast.checkpoints.files import FileEntry, FileStamp, list_files, translate_os_errors
from holdfast.checkpoints.manifest import HOLDFAST_PREFIX, MANIFEST, CheckpointName, SaveInfo
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.retention import Metric, StoredCheckpoint, best, expired, stored_checkpoints
from holdfast.checkpoints.volume_store import VolumeStore

# In a local folder: what is in it now is in the object store, too.
UPLOADED = f"{HOLDFAST_PREFIX}uploaded"
# What is quiet and closed when the training has ended.
POSSIBLY_PARTIAL = "it may be half a checkpoint"


class Remaining(NamedTuple):
    """The checkpoints that are left: of how many epochs there is a valid one, and which is the best."""

    epochs: int
    best: StoredCheckpoint | None


class CheckpointBackend(Protocol):
    """`outcome` is what to call a checkpoint that was kept."""

    outcome: Outcome

    def address(self, name: CheckpointName) -> str: ...

    def look(self, now: float) -> list[FolderScan]:
        """The attempt's checkpoints, newest first; `now` is a clock that only goes forward."""
        ...

    def final_scan(self) -> list[FolderScan]:
        """The same once the training has ended: what is only quiet may be half a checkpoint."""
        ...

    def is_persisted(self, looked: FolderScan) -> bool:
        """Whether what was looked at is what was kept, perhaps by a sidecar before this one."""
        ...

    def persist(self, looked: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        """metrics: those of its epoch, if they were reported."""
        ...

    def apply_retention(
        self, looks: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric
    ) -> Remaining | None:
        """Delete what is too old and not the best; what is left, if this worker can tell."""
        ...

    def worker0_checkpoints(self) -> list[FolderScan] | None:
        """The newest that worker 0 has kept of this attempt; None where its own folder shows this worker as much."""
        ...


class PrimaryVolume:
    """pvc and nfs, for worker 0: a checkpoint stays where it is, and gets a manifest."""

    outcome: Outcome = "completed"

    def __init__(self, folder: Path, attempt: int, *, quiet_s: float = SETTLE_S) -> None:
        self._folder = folder
        self._attempt = attempt
        self._store = VolumeStore(folder.parent, quiet_s=quiet_s)
        self._watch = CheckpointWatcher(folder, quiet_s=quiet_s)
        self._quiet_s = quiet_s

    def address(self, name: CheckpointName) -> str:
        return f"{self._store.address}/{name.folder}"

    def look(self, now: float) -> list[FolderScan]:
        return self._watch.scan(now)

    def final_scan(self) -> list[FolderScan]:
        return [
            _looked_last(self._folder / name.folder_name, name, self._quiet_s)
            for name in list_checkpoints(self._folder)
        ]

    def is_persisted(self, looked: FolderScan) -> bool:
        return is_newer(self._folder / looked.name.folder_name / MANIFEST, looked.content)

    def persist(self, looked: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        self._store.put(looked.name, self._folder / looked.name.folder_name, about, looked.content, metrics=metrics)

    def apply_retention(self, looks: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric) -> Remaining:
        there = stored_checkpoints(self._store, self._attempt)
        top = best(there, by)
        stays = needed if top is None else {*needed, top.name}
        gone = set(expired(there, keep, self._attempt, stays, by)) | {
            name
            for name in superseded(looks, keep, {one.name for one in there if one.is_resumable})
            if name not in stays
        }
        for name in sorted(gone):
            self._store.delete(name)
        return _remaining(there, gone, top)

    def worker0_checkpoints(self) -> None:
        return None


class SecondaryVolume:
    """pvc and nfs, for the other workers: worker 0's manifests tell them what is complete."""

    outcome: Outcome = "completed"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, name: CheckpointName) -> str:
        return str(self._folder.parent / name.folder)

    def look(self, now: float) -> list[FolderScan]:
        return self.final_scan()

    def final_scan(self) -> list[FolderScan]:
        """It leaves no sign of life, as a `Watch` does: a survivor must not vouch for what a dead worker was saving."""
        found = []
        for name in list_checkpoints(self._folder):
            with contextlib.suppress(OSError):
                stat = (self._folder / name.folder_name / MANIFEST).lstat()
                stamp = FileStamp(stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
                found.append(FolderScan(name, True, "it has a manifest", (FileEntry(MANIFEST, stamp),)))
        return found

    def is_persisted(self, looked: FolderScan) -> bool:
        return True

    def persist(self, looked: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        raise AssertionError("everything here is kept by worker 0")

    def apply_retention(self, looks: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric) -> None:
        return None

    def worker0_checkpoints(self) -> None:
        return None


class ObjectStoreUpload:
    """s3, gcs and azure: the folder is the pod's own, and what is complete in it is uploaded."""

    outcome: Outcome = "uploaded"

    def __init__(
        self, folder: Path, store: ObjectStore, attempt: int, *, index: int, workers: int, quiet_s: float = SETTLE_S
    ) -> None:
        self._folder = folder
        self._store = store
        self._attempt = attempt
        self._index = index
        self._workers = workers
        self._watch = CheckpointWatcher(folder, quiet_s=quiet_s)
        self._quiet_s = quiet_s
        self._local = VolumeStore(folder.parent)

    def address(self, name: CheckpointName) -> str:
        return f"{self._store.address}/{name.folder}"

    def look(self, now: float) -> list[FolderScan]:
        return [self._with_own_shards(looked) for looked in self._watch.scan(now)]

    def final_scan(self) -> list[FolderScan]:
        names = list_checkpoints(self._folder)
        return [
            self._with_own_shards(_looked_last(self._folder / name.folder_name, name, self._quiet_s)) for name in names
        ]

    def is_persisted(self, looked: FolderScan) -> bool:
        # A manifest here is that of a restored copy, which was in the store before.
        return any(
            is_newer(self._folder / looked.name.folder_name / sign, looked.content) for sign in (UPLOADED, MANIFEST)
        )

    def persist(self, looked: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        name, folder, content = looked.name, self._folder / looked.name.folder_name, looked.content
        # A training may save anew under that name at any moment: the sign goes into the folder that was uploaded.
        with (
            translate_os_errors(f"note in {folder} that it was uploaded"),
            _replaceable(folder),
            opened(folder) as descriptor,
        ):
            if self._index:
                self._store.put_shard(name, folder, self._index, about, content)
            else:
                self._store.put(name, folder, about, content, ranks=self._others(folder), metrics=metrics)
            sign = os.open(UPLOADED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=descriptor)
            os.utime(sign)
            os.close(sign)

    def apply_retention(
        self, looks: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric
    ) -> Remaining | None:
        uploaded = {looked.name for looked in looks if looked.complete and self.is_persisted(looked)}
        for name in superseded(looks, keep, uploaded):
            if name.folder_name not in {one.folder_name for one in needed}:
                self._local.delete(name)
        if self._index:
            return None
        there = stored_checkpoints(self._store, self._attempt)
        gone = expired(there, keep, self._attempt, needed, by)
        for name in gone:
            self._store.delete(name)
        return _remaining(there, set(gone), best(there, by))

    def worker0_checkpoints(self) -> list[FolderScan] | None:
        if not self._index:
            return None
        newest = next((name for name in self._store.names(self._attempt) if name.attempt == self._attempt), None)
        manifest = self._store.manifest(newest) if newest is not None else None
        if newest is None or manifest is None:
            return []
        # What is saved anew under its name has another time or step.
        saved = FileEntry(f"{manifest.about.saved_at} {manifest.step}", FileStamp(0, 0, 0, 0))
        return [FolderScan(newest, True, "it has a manifest", (saved,))]

    def _with_own_shards(self, looked: FolderScan) -> FolderScan:
        """With the SDK each worker declares shards: here are those of its own processes alone."""
        if looked.complete or not looked.content:
            return looked
        declared = read_markers(self._folder / looked.name.folder_name)
        if declared is None or len(declared.ranks) < max(1, declared.shards // self._workers):
            return looked
        return looked._replace(complete=True, why="all shards of this worker are declared")

    def _others(self, folder: Path) -> range | None:
        """The workers whose parts are waited for; None: what is there is taken, since they may have none."""
        declared = read_markers(folder)
        if declared is None or declared.all_shards_present:
            return None
        return range(1, self._workers)


@contextlib.contextmanager
def _replaceable(folder: Path) -> Iterator[None]:
    """A training that saves anew removes the folder that is being read."""
    try:
        yield
    except FileNotFoundError:
        raise Incomplete(f"{folder} was replaced while it was read: it is taken again") from None


def is_newer(sign: Path, content: tuple[FileEntry, ...]) -> bool:
    """Whether a sign was set after the last change."""
    try:
        set_ns = sign.lstat().st_ctime_ns
    except OSError:
        return False
    return bool(content) and set_ns >= max(entry.stamp.changed_ns for entry in content)


def superseded(looks: list[FolderScan], keep: int, valid: set[CheckpointName]) -> list[CheckpointName]:
    """Complete ones for which there are `keep` newer ones that are valid, so that nobody will ask for them."""
    newest = sorted({name.epoch for name in valid}, reverse=True)[:keep]
    if len(newest) < keep:
        return []
    return [looked.name for looked in looks if looked.complete and looked.name.epoch < newest[-1]]


def _remaining(there: list[StoredCheckpoint], gone: set[CheckpointName], top: StoredCheckpoint | None) -> Remaining:
    return Remaining(len({one.name.epoch for one in there if one.is_resumable and one.name not in gone}), top)


def _looked_last(folder: Path, name: CheckpointName, quiet_s: float) -> FolderScan:
    try:
        content, declared = list_files(folder), read_markers(folder)
        if declared is None and is_newer(folder / MANIFEST, content):
            return FolderScan(name, True, "it has a manifest", content)
        why = completed_before_exit(folder, quiet_s)
        doubt = POSSIBLY_PARTIAL if declared is None else "shards of it are missing"
        return FolderScan(name, why is not None, why or doubt, content, declared)
    except (Incomplete, UnsafeContent, OSError) as error:
        return FolderScan(name, False, str(error), ())
