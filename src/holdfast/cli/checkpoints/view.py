"""The checkpoint storage of a job for commands: the store, its quarantine, and single files."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from holdfast.checkpoints import files, manifest
from holdfast.checkpoints.completeness import completed_before_exit
from holdfast.checkpoints.confined_files import LeavesFolder, regular
from holdfast.checkpoints.errors import Corrupt, Incomplete, UnsafeContent
from holdfast.checkpoints.files import CHUNK_BYTES, read_small_file
from holdfast.checkpoints.manifest import MANIFEST, QUARANTINE, CheckpointName, File
from holdfast.checkpoints.object_store import Bucket, ObjectStore
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.volume_store import VolumeStore


class StorageView(Protocol):
    store: CheckpointStore

    def chunks(self, name: CheckpointName, file: File) -> Iterable[bytes | memoryview]:
        """The content of a file; raises Corrupt if the file is missing."""
        ...

    def is_complete(self, name: CheckpointName) -> bool:
        """Whether a resume would use the checkpoint, although it has no manifest; its attempt must be over."""
        ...

    def quarantined(self) -> Iterator[tuple[str, bytes | None]]:
        """Name and manifest of each quarantined checkpoint."""
        ...


class VolumeView:
    """Checkpoints in a mounted folder."""

    def __init__(self, root: Path) -> None:
        self._folder = VolumeStore(root)
        self.store: CheckpointStore = self._folder

    def open(self, name: CheckpointName, file: File) -> BinaryIO:
        """Open a file of a checkpoint; raises Corrupt if the folder of the checkpoint has no such file."""
        with files.translate_os_errors(f"read {file.path} of {name}"):
            try:
                with regular(self._folder.folder(name), file.path) as path:
                    return path.open("rb")
            except LeavesFolder:
                raise Corrupt(f"{file.path} is a link that leads out of the checkpoint's folder") from None
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise Corrupt(f"{file.path} is missing") from None

    def chunks(self, name: CheckpointName, file: File) -> Iterator[bytes]:
        with self.open(name, file) as opened, files.translate_os_errors(f"read {file.path} of {name}"):
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk

    def is_complete(self, name: CheckpointName) -> bool:
        with files.translate_os_errors(f"look at {self._folder.folder(name)}"):
            try:
                return completed_before_exit(self._folder.folder(name)) is not None
            except (Incomplete, UnsafeContent):
                return False

    def quarantined(self) -> Iterator[tuple[str, bytes | None]]:
        quarantine = self._folder.root / QUARANTINE
        with files.translate_os_errors(f"look into {quarantine}"):
            for name in sorted(files.names_in(quarantine)) if quarantine.is_dir() else ():
                yield name, read_small_file(quarantine / name / MANIFEST, manifest.MAX_BYTES)


class BucketView:
    """Checkpoints in an object store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.store: CheckpointStore = ObjectStore(bucket)

    def chunks(self, name: CheckpointName, file: File) -> Iterator[bytes | memoryview]:
        found = False
        for chunk in self._bucket.stream(f"{name.folder}/{file.key}"):
            found = True
            yield chunk
        if not found and file.size:
            raise Corrupt(f"{file.path} is missing")

    def is_complete(self, name: CheckpointName) -> bool:
        return False

    def quarantined(self) -> Iterator[tuple[str, bytes | None]]:
        for folder in sorted(self._bucket.folders(QUARANTINE)):
            yield folder, self._bucket.read(f"{QUARANTINE}/{folder}/{MANIFEST}", manifest.MAX_BYTES)
