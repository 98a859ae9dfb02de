"""The store on a volume (pvc, nfs): checkpoints stay where the training wrote them, and get a manifest."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.checkpoints import confined_files
from holdfast.checkpoints import files as disk
from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.completeness import SETTLE_S, completed_before_exit, described, list_checkpoints, read_markers
from holdfast.checkpoints.errors import (
    CheckpointNotFound,
    Corrupt,
    Incomplete,
    InvalidCheckpointManifest,
    UnsafeContent,
)
from holdfast.checkpoints.files import (
    CHUNK_BYTES,
    FileEntry,
    FolderListing,
    ensure_unchanged,
    list_files,
    listing,
    read_small_file,
    sha256_of,
)
from holdfast.checkpoints.manifest import ATTEMPT, MANIFEST, CheckpointManifest, CheckpointName, File, SaveInfo
from holdfast.checkpoints.store import LEASE, NO_METRICS, decided_attempts, decision_path, require_manifest
from holdfast.checkpoints.unpack import map_in_threads, unpack, verify_stream

WORKERS = 2
NOTE_BYTES = 64 << 10


class VolumeStore:
    """The job's own folder on a volume that all workers share."""

    def __init__(self, root: Path, *, workers: int = WORKERS, quiet_s: float = SETTLE_S) -> None:
        self.root = Path(os.path.realpath(root))
        self._workers = workers
        self._quiet_s = quiet_s

    @property
    def address(self) -> str:
        return str(self.root)

    def folder(self, name: CheckpointName) -> Path:
        return self.root / name.folder

    def names(self, until: int) -> list[CheckpointName]:
        with disk.translate_os_errors(f"look for checkpoints in {self.root}"):
            attempts = self.attempt_folders(until)
            return sorted((name for path in attempts for name in list_checkpoints(path)), reverse=True)

    def attempt_folders(self, until: int) -> list[Path]:
        return [path for path in _folders(self.root) if _number(path) <= until]

    def manifest(self, name: CheckpointName) -> CheckpointManifest | None:
        path = self.folder(name) / MANIFEST
        with disk.translate_os_errors(f"read {path}"):
            content = read_small_file(path, manifests.MAX_BYTES)
        if content is None:
            return None
        manifest = manifests.decode(content, str(name))
        # A copy of an older attempt's checkpoint retains the manifest of the original.
        if manifest.epoch != name.epoch or manifest.attempt > name.attempt:
            raise InvalidCheckpointManifest(f"the manifest in {self.folder(name)} is that of another checkpoint")
        return manifest

    def put(
        self,
        name: CheckpointName,
        source: Path,
        about: SaveInfo,
        expected: tuple[FileEntry, ...] | None = None,
        *,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> CheckpointManifest:
        """Store in place: `source` is the checkpoint's own folder on the volume."""
        if source.resolve() != self.folder(name):
            raise UnsafeContent(
                f"{source} is not where {name} is kept: on a volume, checkpoints stay where they are written"
            )
        source = self.folder(name)
        with disk.translate_os_errors(f"digest {source}"), listing(source) as listed:
            listed.must_be(expected)
            declared = read_markers(source)
            if declared is not None and not declared.all_shards_present:
                raise Incomplete(f"{source} lacks shards: they are waited for")
            files = map_in_threads(lambda entry: _digested(listed, entry), listed.content, self._workers)
            for folder in {entry.path.rpartition("/")[0] for entry in listed.content}:
                with confined_files.found(listed.descriptor, folder, source) as descriptor:
                    disk.sync_file(confined_files.reopened(descriptor))
            ensure_unchanged(source, listed.content)
            manifest = described(name, about, files, declared, metrics)
            # A training may save anew under that name at any moment: the manifest goes into the folder that was read.
            try:
                disk.write_manifest(source, manifests.encode(manifest), listed.descriptor)
            except FileNotFoundError:
                raise Incomplete(f"{source} was replaced while it was read: it is taken again") from None
        return manifest

    def write_missing_manifest(self, name: CheckpointName, about: SaveInfo) -> CheckpointManifest | None:
        folder = self.folder(name)
        with disk.translate_os_errors(f"look at {folder}"):
            return self.put(name, folder, about) if completed_before_exit(folder, self._quiet_s) else None

    def get(self, name: CheckpointName, target: Path) -> CheckpointManifest:
        if target.resolve() == self.folder(name):
            return self.verify(name)
        manifest = require_manifest(self, name)
        self._ensure_files_present(name, manifest)
        unpack(manifest, target, lambda file: self._chunks(name, file), workers=self._workers)
        return manifest

    def verify(self, name: CheckpointName) -> CheckpointManifest:
        manifest = require_manifest(self, name)
        self._ensure_files_present(name, manifest)
        map_in_threads(lambda file: self._verify_file(name, file), manifest.files, self._workers)
        return manifest

    def delete(self, name: CheckpointName) -> None:
        """Delete by a rename: a half emptied folder without its manifest might pass for a checkpoint."""
        with disk.translate_os_errors(f"delete {name} in {self.root}"):
            if self.folder(name).is_dir():
                disk.delete_folder_atomically(self.folder(name))

    def quarantine(self, name: CheckpointName) -> str:
        with disk.translate_os_errors(f"set {name} aside in {self.root}"):
            target = _unused_path(self.root / name.quarantined)
            disk.make_folder(target.parent)
            disk.rename(self.folder(name), target)
        return str(target)

    def read_decision(self, attempt: int) -> bytes | None:
        with disk.translate_os_errors(f"read what was decided for attempt {attempt} in {self.root}"):
            return read_small_file(self.root / decision_path(attempt), NOTE_BYTES)

    def write_decision(self, attempt: int, content: bytes) -> None:
        with disk.translate_os_errors(f"write down what was decided for attempt {attempt} in {self.root}"):
            disk.make_folder(self.root)
            disk.write(self.root / decision_path(attempt), content)

    def lease(self) -> bytes | None:
        with disk.translate_os_errors(f"read the lease of {self.root}"):
            return read_small_file(self.root / LEASE, NOTE_BYTES)

    def write_lease(self, content: bytes) -> None:
        with disk.translate_os_errors(f"write the lease of {self.root}"):
            disk.make_folder(self.root)
            disk.write(self.root / LEASE, content)

    def decided_attempts(self) -> list[int]:
        with disk.translate_os_errors(f"look for what was decided in {self.root}"):
            return decided_attempts(os.listdir(self.root)) if self.root.is_dir() else []  # noqa: PTH208  # names are enough

    def remove_interrupted(self, until: int) -> None:
        """Remove the remains of interrupted deletions and restores from the attempts' folders."""
        with disk.translate_os_errors(f"tidy {self.root}"):
            for path in self.attempt_folders(until):
                disk.remove_interrupted(path)

    def _ensure_files_present(self, name: CheckpointName, manifest: CheckpointManifest) -> None:
        """Raise unless every file of the manifest is in this folder itself."""
        try:
            present = {entry.path for entry in list_files(self.folder(name))}
        except UnsafeContent as error:
            raise Corrupt(f"{name} was changed after it was saved: {error}") from None
        except Incomplete:
            raise CheckpointNotFound(f"{name} was removed meanwhile") from None
        if missing := [file.path for file in manifest.files if file.path not in present]:
            raise Corrupt(f"{name}: {len(missing)} of {len(manifest.files)} files are missing, the first: {missing[0]}")

    def _chunks(self, name: CheckpointName, file: File) -> Iterator[bytes]:
        try:
            with confined_files.regular(self.folder(name), file.path) as path, path.open("rb", buffering=0) as source:
                while chunk := source.read(CHUNK_BYTES):
                    yield chunk
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, confined_files.LeavesFolder):
            raise Corrupt(f"{file.path} is not there any more") from None

    def _verify_file(self, name: CheckpointName, file: File) -> None:
        with disk.translate_os_errors(f"read {file.path} of {name}"):
            verify_stream(file, lambda file: self._chunks(name, file))


def _digested(listed: FolderListing, entry: FileEntry) -> File:
    with listed.reading(entry) as path:
        sha256 = sha256_of(path)
        # A manifest that survives a power cut must not list files that do not.
        disk.sync_file(path)
    return File(entry.path, entry.stamp.size, sha256)


def _folders(root: Path) -> list[Path]:
    """The attempts' folders. Links do not count, since they may lead out of the job's folder."""
    try:
        with os.scandir(root) as listing:
            return [Path(root, entry.name) for entry in listing if _is_attempt(entry)]
    except FileNotFoundError:
        return []


def _is_attempt(entry: os.DirEntry[str]) -> bool:
    return ATTEMPT.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("attempt-"))


def _unused_path(target: Path) -> Path:
    """An unused path: a quarantined checkpoint is never replaced."""
    number, free = 2, target
    while os.path.lexists(free):
        free = target.with_name(f"{target.name}-{number}")
        number += 1
    return free
