"""A job's checkpoints as a person looks at them: the store, what it has set aside, and its files one by one."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from holdfast.checkpoints import files
from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.completeness import completed_before_exit
from holdfast.checkpoints.confined_files import LeavesFolder, regular
from holdfast.checkpoints.errors import Corrupt, Incomplete, UnsafeContent
from holdfast.checkpoints.files import CHUNK_BYTES, read_small_file
from holdfast.checkpoints.manifest import MANIFEST, QUARANTINE, CheckpointName, File
from holdfast.checkpoints.object_store import Bucket, ObjectStore
from holdfast.checkpoints.store import Store
from holdfast.checkpoints.volume_store import VolumeStore


class StorageView(Protocol):
    store: Store

    def chunks(self, name: CheckpointName, file: File) -> Iterable[bytes | memoryview]:
        """The content of a file; raises Corrupt if it is not there."""
        ...

    def is_complete(self, name: CheckpointName) -> bool:
        """Of one without a manifest whose attempt is over: whether a resume would take it all the same."""
        ...

    def quarantined(self) -> Iterator[tuple[str, bytes | None]]:
        """The name of each that was set aside, and its manifest."""
        ...


class VolumeView:
    """A folder that is mounted here."""

    def __init__(self, root: Path) -> None:
        self._folder = VolumeStore(root)
        self.store: Store = self._folder

    def open(self, name: CheckpointName, file: File) -> BinaryIO:
        """Raises Corrupt if there is no such file in the checkpoint's own folder."""
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
        aside = self._folder.root / QUARANTINE
        with files.translate_os_errors(f"look into {aside}"):
            for name in sorted(files.names_in(aside)) if aside.is_dir() else ():
                yield name, read_small_file(aside / name / MANIFEST, manifests.MAX_BYTES)


class BucketView:
    """An object store, reached from here."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.store: Store = ObjectStore(bucket)

    def chunks(self, name: CheckpointName, file: File) -> Iterator[bytes | memoryview]:
        there = False
        for chunk in self._bucket.stream(f"{name.folder}/{file.key}"):
            there = True
            yield chunk
        if not there and file.size:
            raise Corrupt(f"{file.path} is missing")

    def is_complete(self, name: CheckpointName) -> bool:
        return False

    def quarantined(self) -> Iterator[tuple[str, bytes | None]]:
        for folder in sorted(self._bucket.folders(QUARANTINE)):
            yield folder, self._bucket.read(f"{QUARANTINE}/{folder}/{MANIFEST}", manifests.MAX_BYTES)
