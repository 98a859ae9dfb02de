"""The storage backends for checkpoints: worker 0 on a volume, the other workers on a volume, and object stores.

On a volume that all workers share, worker 0 persists for all. To an object store each worker uploads its own files.
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
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar.settings import Checkpoints, SidecarSettings

# Each file in transfer takes about 10 MiB; the whole process must stay below 80 MiB.
WORKERS = 2
# A marker in a local folder: the object store holds the current content of the folder.
UPLOADED = f"{HOLDFAST_PREFIX}uploaded"
# For a checkpoint whose files are closed and unchanged for a while when the training has ended.
POSSIBLY_PARTIAL = "it may be half a checkpoint"


class Remaining(NamedTuple):
    """The checkpoints after retention: the number of epochs with a valid checkpoint, and the best checkpoint."""

    epochs: int
    best: StoredCheckpoint | None


class CheckpointBackend(Protocol):
    """`outcome` is the reported outcome of a persisted checkpoint."""

    outcome: Outcome

    def address(self, name: CheckpointName) -> str: ...

    def scan(self, now: float) -> list[FolderScan]:
        """The attempt's checkpoints, newest first; `now` is the time of a monotonic clock."""
        ...

    def final_scan(self) -> list[FolderScan]:
        """The same after the training has ended: a checkpoint that has merely stopped changing may be partial."""
        ...

    def is_persisted(self, scan: FolderScan) -> bool:
        """Whether the scanned content is persisted, perhaps by an earlier run of the sidecar."""
        ...

    def persist(self, scan: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        """metrics: the metrics of the checkpoint's epoch, if the training reported them."""
        ...

    def apply_retention(
        self, scans: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric
    ) -> Remaining | None:
        """Delete old checkpoints except the best; returns the remaining ones, if this worker can see them all."""
        ...

    def worker0_checkpoints(self) -> list[FolderScan] | None:
        """The newest checkpoint of this attempt by worker 0; None where this worker's own folder shows it."""
        ...


class PrimaryVolume:
    """pvc and nfs, for worker 0: a checkpoint stays at its path, and gets a manifest."""

    outcome: Outcome = "completed"

    def __init__(self, folder: Path, attempt: int, *, quiet_s: float = SETTLE_S) -> None:
        self._folder = folder
        self._attempt = attempt
        self._store = VolumeStore(folder.parent, quiet_s=quiet_s)
        self._watcher = CheckpointWatcher(folder, quiet_s=quiet_s)
        self._quiet_s = quiet_s

    def address(self, name: CheckpointName) -> str:
        return f"{self._store.address}/{name.folder}"

    def scan(self, now: float) -> list[FolderScan]:
        return self._watcher.scan(now)

    def final_scan(self) -> list[FolderScan]:
        return [
            _scan_after_exit(self._folder / name.folder_name, name, self._quiet_s)
            for name in list_checkpoints(self._folder)
        ]

    def is_persisted(self, scan: FolderScan) -> bool:
        return is_newer(self._folder / scan.name.folder_name / MANIFEST, scan.content)

    def persist(self, scan: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        self._store.put(scan.name, self._folder / scan.name.folder_name, about, scan.content, metrics=metrics)

    def apply_retention(self, scans: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric) -> Remaining:
        stored = stored_checkpoints(self._store, self._attempt)
        top = best(stored, by)
        protected = needed if top is None else {*needed, top.name}
        deleted = set(expired(stored, keep, self._attempt, protected, by)) | {
            name
            for name in superseded(scans, keep, {checkpoint.name for checkpoint in stored if checkpoint.is_resumable})
            if name not in protected
        }
        for name in sorted(deleted):
            self._store.delete(name)
        return _remaining(stored, deleted, top)

    def worker0_checkpoints(self) -> None:
        return None


class SecondaryVolume:
    """pvc and nfs, for the other workers: a checkpoint is complete when it has worker 0's manifest."""

    outcome: Outcome = "completed"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, name: CheckpointName) -> str:
        return str(self._folder.parent / name.folder)

    def scan(self, now: float) -> list[FolderScan]:
        return self.final_scan()

    def final_scan(self) -> list[FolderScan]:
        """Unlike `CheckpointWatcher`, this scan writes no heartbeat.

        A surviving worker must not vouch for a checkpoint that a dead worker was saving.
        """
        found = []
        for name in list_checkpoints(self._folder):
            with contextlib.suppress(OSError):
                stat = (self._folder / name.folder_name / MANIFEST).lstat()
                stamp = FileStamp(stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
                found.append(FolderScan(name, True, "it has a manifest", (FileEntry(MANIFEST, stamp),)))
        return found

    def is_persisted(self, scan: FolderScan) -> bool:
        return True

    def persist(self, scan: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        raise AssertionError("everything here is kept by worker 0")

    def apply_retention(self, scans: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric) -> None:
        return None

    def worker0_checkpoints(self) -> None:
        return None


class ObjectStoreUpload:
    """s3, gcs and azure: the folder is local to the pod, and complete checkpoints in it are uploaded."""

    outcome: Outcome = "uploaded"

    def __init__(
        self, folder: Path, store: ObjectStore, attempt: int, *, index: int, workers: int, quiet_s: float = SETTLE_S
    ) -> None:
        self._folder = folder
        self._store = store
        self._attempt = attempt
        self._index = index
        self._workers = workers
        self._watcher = CheckpointWatcher(folder, quiet_s=quiet_s)
        self._quiet_s = quiet_s
        self._local = VolumeStore(folder.parent)

    def address(self, name: CheckpointName) -> str:
        return f"{self._store.address}/{name.folder}"

    def scan(self, now: float) -> list[FolderScan]:
        return [self._with_own_shards(scan) for scan in self._watcher.scan(now)]

    def final_scan(self) -> list[FolderScan]:
        names = list_checkpoints(self._folder)
        return [
            self._with_own_shards(_scan_after_exit(self._folder / name.folder_name, name, self._quiet_s))
            for name in names
        ]

    def is_persisted(self, scan: FolderScan) -> bool:
        # A manifest in the local folder belongs to a restored copy, which the store has already.
        return any(
            is_newer(self._folder / scan.name.folder_name / marker, scan.content) for marker in (UPLOADED, MANIFEST)
        )

    def persist(self, scan: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        name, folder, content = scan.name, self._folder / scan.name.folder_name, scan.content
        # The training may save again under this name at any moment: the marker goes into the folder that was uploaded.
        with (
            translate_os_errors(f"note in {folder} that it was uploaded"),
            _replaceable(folder),
            opened(folder) as descriptor,
        ):
            if self._index:
                self._store.put_shard(name, folder, self._index, about, content)
            else:
                self._store.put(name, folder, about, content, ranks=self._ranks_to_wait_for(folder), metrics=metrics)
            marker = os.open(UPLOADED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=descriptor)
            os.utime(marker)
            os.close(marker)

    def apply_retention(
        self, scans: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric
    ) -> Remaining | None:
        uploaded = {scan.name for scan in scans if scan.complete and self.is_persisted(scan)}
        for name in superseded(scans, keep, uploaded):
            if name.folder_name not in {each.folder_name for each in needed}:
                self._local.delete(name)
        if self._index:
            return None
        stored = stored_checkpoints(self._store, self._attempt)
        deleted = expired(stored, keep, self._attempt, needed, by)
        for name in deleted:
            self._store.delete(name)
        return _remaining(stored, set(deleted), best(stored, by))

    def worker0_checkpoints(self) -> list[FolderScan] | None:
        if not self._index:
            return None
        newest = next((name for name in self._store.names(self._attempt) if name.attempt == self._attempt), None)
        manifest = self._store.manifest(newest) if newest is not None else None
        if newest is None or manifest is None:
            return []
        # A new save under the same name has another time or step.
        saved = FileEntry(f"{manifest.about.saved_at} {manifest.step}", FileStamp(0, 0, 0, 0))
        return [FolderScan(newest, True, "it has a manifest", (saved,))]

    def _with_own_shards(self, scan: FolderScan) -> FolderScan:
        """With the SDK each rank declares its shard: this folder holds the shards of this worker's processes only."""
        if scan.complete or not scan.content:
            return scan
        declared = read_markers(self._folder / scan.name.folder_name)
        if declared is None or len(declared.ranks) < max(1, declared.shards // self._workers):
            return scan
        return scan._replace(complete=True, why="all shards of this worker are declared")

    def _ranks_to_wait_for(self, folder: Path) -> range | None:
        """The workers whose parts to wait for; None: take the parts that exist, since other workers may have none."""
        declared = read_markers(folder)
        if declared is None or declared.all_shards_present:
            return None
        return range(1, self._workers)


@contextlib.contextmanager
def _replaceable(folder: Path) -> Iterator[None]:
    """A training that saves again removes the folder while it is read."""
    try:
        yield
    except FileNotFoundError:
        raise Incomplete(f"{folder} was replaced while it was read: it is taken again") from None


def is_newer(marker: Path, content: tuple[FileEntry, ...]) -> bool:
    """Whether the marker was written after the last change of the content."""
    try:
        set_ns = marker.lstat().st_ctime_ns
    except OSError:
        return False
    return bool(content) and set_ns >= max(entry.stamp.changed_ns for entry in content)


def superseded(scans: list[FolderScan], keep: int, valid: set[CheckpointName]) -> list[CheckpointName]:
    """Complete checkpoints with `keep` newer valid ones: nothing will resume from them."""
    newest = sorted({name.epoch for name in valid}, reverse=True)[:keep]
    if len(newest) < keep:
        return []
    return [scan.name for scan in scans if scan.complete and scan.name.epoch < newest[-1]]


def _remaining(stored: list[StoredCheckpoint], deleted: set[CheckpointName], top: StoredCheckpoint | None) -> Remaining:
    return Remaining(
        len(
            {
                checkpoint.name.epoch
                for checkpoint in stored
                if checkpoint.is_resumable and checkpoint.name not in deleted
            }
        ),
        top,
    )


def _scan_after_exit(folder: Path, name: CheckpointName, quiet_s: float) -> FolderScan:
    try:
        content, declared = list_files(folder), read_markers(folder)
        if declared is None and is_newer(folder / MANIFEST, content):
            return FolderScan(name, True, "it has a manifest", content)
        why = completed_before_exit(folder, quiet_s)
        doubt = POSSIBLY_PARTIAL if declared is None else "shards of it are missing"
        return FolderScan(name, why is not None, why or doubt, content, declared)
    except (Incomplete, UnsafeContent, OSError) as error:
        return FolderScan(name, False, str(error), ())


def open_object_store(checkpoints: Checkpoints, environ: Mapping[str, str]) -> ObjectStore | None:
    return ObjectStore(open_bucket(checkpoints.store, environ), workers=WORKERS) if checkpoints.store else None


def open_backend(
    checkpoints: Checkpoints, settings: SidecarSettings, environ: Mapping[str, str], quiet_s: float
) -> CheckpointBackend:
    store, attempt = open_object_store(checkpoints, environ), settings.attempt
    if store is not None:
        index, workers = settings.index, settings.workers
        return ObjectStoreUpload(checkpoints.folder, store, attempt, index=index, workers=workers, quiet_s=quiet_s)
    return (
        SecondaryVolume(checkpoints.folder)
        if settings.index
        else PrimaryVolume(checkpoints.folder, attempt, quiet_s=quiet_s)
    )
