"""Checkpoints on a volume (pvc, nfs): they stay where the training wrote them, and get a manifest."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.checkpoints import beneath, disk
from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.complete import QUIET_S, checkpoints_in, complete_after_all, declared_in, described
from holdfast.checkpoints.content import CHUNK_BYTES, Entry, Listing, entries, listing, read_own, sha256_of, unchanged
from holdfast.checkpoints.errors import BadManifest, Corrupt, Incomplete, NoCheckpoint, Refused
from holdfast.checkpoints.manifest import About, File, Manifest
from holdfast.checkpoints.names import ATTEMPT, MANIFEST, Name
from holdfast.checkpoints.parallel import each
from holdfast.checkpoints.store import LEASE, NO_METRICS, found, note_of, noted_in
from holdfast.checkpoints.unpack import read_through, unpack

WORKERS = 2
NOTE_BYTES = 64 << 10


class FolderStore:
    """The job's own folder on a volume, which every worker sees."""

    def __init__(self, root: Path, *, workers: int = WORKERS, quiet_s: float = QUIET_S) -> None:
        self.root = Path(os.path.realpath(root))
        self._workers = workers
        self._quiet_s = quiet_s

    @property
    def address(self) -> str:
        return str(self.root)

    def folder(self, name: Name) -> Path:
        return self.root / name.folder

    def names(self, until: int) -> list[Name]:
        with disk.explained(f"look for checkpoints in {self.root}"):
            attempts = self.attempt_folders(until)
            return sorted((name for path in attempts for name in checkpoints_in(path)), reverse=True)

    def attempt_folders(self, until: int) -> list[Path]:
        return [path for path in _folders(self.root) if _number(path) <= until]

    def manifest(self, name: Name) -> Manifest | None:
        path = self.folder(name) / MANIFEST
        with disk.explained(f"read {path}"):
            content = read_own(path, manifests.MAX_BYTES)
        if content is None:
            return None
        manifest = manifests.decode(content, str(name))
        # The copy that an attempt was given of an older one's keeps its manifest.
        if manifest.epoch != name.epoch or manifest.attempt > name.attempt:
            raise BadManifest(f"the manifest in {self.folder(name)} is that of another checkpoint")
        return manifest

    def put(
        self,
        name: Name,
        source: Path,
        about: About,
        expected: tuple[Entry, ...] | None = None,
        *,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> Manifest:
        """In place: `source` is the checkpoint's own folder on the volume."""
        if source.resolve() != self.folder(name):
            raise Refused(f"{source} is not where {name} is kept: on a volume, checkpoints stay where they are written")
        source = self.folder(name)
        with disk.explained(f"digest {source}"), listing(source) as there:
            there.must_be(expected)
            declared = declared_in(source)
            if declared is not None and not declared.whole:
                raise Incomplete(f"{source} lacks shards: they are waited for")
            files = each(lambda entry: _digested(there, entry), there.content, self._workers)
            for folder in {entry.path.rpartition("/")[0] for entry in there.content}:
                with beneath.found(there.descriptor, folder, source) as descriptor:
                    disk.sync_file(beneath.reopened(descriptor))
            unchanged(source, there.content)
            manifest = described(name, about, files, declared, metrics)
            # A training may save anew under that name at any moment: the manifest goes into the folder that was read.
            try:
                disk.write_manifest(source, manifests.encode(manifest), there.descriptor)
            except FileNotFoundError:
                raise Incomplete(f"{source} was replaced while it was read: it is taken again") from None
        return manifest

    def adopt(self, name: Name, about: About) -> Manifest | None:
        folder = self.folder(name)
        with disk.explained(f"look at {folder}"):
            return self.put(name, folder, about) if complete_after_all(folder, self._quiet_s) else None

    def get(self, name: Name, target: Path) -> Manifest:
        if target.resolve() == self.folder(name):
            return self.verify(name)
        manifest = found(self, name)
        self._present(name, manifest)
        unpack(manifest, target, lambda file: self._chunks(name, file), workers=self._workers)
        return manifest

    def verify(self, name: Name) -> Manifest:
        manifest = found(self, name)
        self._present(name, manifest)
        each(lambda file: self._verify_file(name, file), manifest.files, self._workers)
        return manifest

    def delete(self, name: Name) -> None:
        """It vanishes whole, by a rename: a folder half emptied, without its manifest, might pass for a checkpoint."""
        with disk.explained(f"delete {name} in {self.root}"):
            if self.folder(name).is_dir():
                disk.remove(self.folder(name))

    def quarantine(self, name: Name) -> str:
        with disk.explained(f"set {name} aside in {self.root}"):
            target = _free(self.root / name.quarantined)
            disk.make_folder(target.parent)
            disk.rename(self.folder(name), target)
        return str(target)

    def note(self, attempt: int) -> bytes | None:
        with disk.explained(f"read what was decided for attempt {attempt} in {self.root}"):
            return read_own(self.root / note_of(attempt), NOTE_BYTES)

    def write_note(self, attempt: int, content: bytes) -> None:
        with disk.explained(f"write down what was decided for attempt {attempt} in {self.root}"):
            disk.make_folder(self.root)
            disk.write(self.root / note_of(attempt), content)

    def lease(self) -> bytes | None:
        with disk.explained(f"read the lease of {self.root}"):
            return read_own(self.root / LEASE, NOTE_BYTES)

    def write_lease(self, content: bytes) -> None:
        with disk.explained(f"write the lease of {self.root}"):
            disk.make_folder(self.root)
            disk.write(self.root / LEASE, content)

    def noted(self) -> list[int]:
        with disk.explained(f"look for what was decided in {self.root}"):
            return noted_in(os.listdir(self.root)) if self.root.is_dir() else []  # noqa: PTH208  # names are enough

    def remove_leftovers(self, until: int) -> None:
        """What interrupted deletions and restores have left in the attempts' folders."""
        with disk.explained(f"tidy {self.root}"):
            for path in self.attempt_folders(until):
                disk.remove_leftovers(path)

    def _present(self, name: Name, manifest: Manifest) -> None:
        """Raise unless every file is there, in this folder and in no other."""
        try:
            there = {entry.path for entry in entries(self.folder(name))}
        except Refused as error:
            raise Corrupt(f"{name} was changed after it was saved: {error}") from None
        except Incomplete:
            raise NoCheckpoint(f"{name} was removed meanwhile") from None
        if missing := [file.path for file in manifest.files if file.path not in there]:
            raise Corrupt(f"{name}: {len(missing)} of {len(manifest.files)} files are missing, the first: {missing[0]}")

    def _chunks(self, name: Name, file: File) -> Iterator[bytes]:
        try:
            with beneath.regular(self.folder(name), file.path) as path, path.open("rb", buffering=0) as source:
                while chunk := source.read(CHUNK_BYTES):
                    yield chunk
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, beneath.LeavesFolder):
            raise Corrupt(f"{file.path} is not there any more") from None

    def _verify_file(self, name: Name, file: File) -> None:
        with disk.explained(f"read {file.path} of {name}"):
            read_through(file, lambda file: self._chunks(name, file))


def _digested(there: Listing, entry: Entry) -> File:
    with there.reading(entry) as path:
        sha256 = sha256_of(path)
        # A manifest that outlives a power cut must not speak of files that don't.
        disk.sync_file(path)
    return File(entry.path, entry.stamp.size, sha256)


def _folders(root: Path) -> list[Path]:
    """The attempts' folders; links are none, since they may lead out of the job's own."""
    try:
        with os.scandir(root) as listing:
            return [Path(root, entry.name) for entry in listing if _is_attempt(entry)]
    except FileNotFoundError:
        return []


def _is_attempt(entry: os.DirEntry[str]) -> bool:
    return ATTEMPT.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("attempt-"))


def _free(target: Path) -> Path:
    """A name that nothing has yet: what is in quarantine is never replaced."""
    number, free = 2, target
    while os.path.lexists(free):
        free = target.with_name(f"{target.name}-{number}")
        number += 1
    return free
