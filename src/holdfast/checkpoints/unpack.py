"""Unpacks a checkpoint into a folder: under a temporary name, with every digest verified, synced, and then renamed."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoints import confined_files
from holdfast.checkpoints import files as disk
from holdfast.checkpoints.confined_files import opened
from holdfast.checkpoints.errors import Corrupt, StorageFull
from holdfast.checkpoints.files import sha256_of
from holdfast.checkpoints.manifest import CheckpointManifest, File, encode

# Parallel work in threads: reading, hashing and sending release the interpreter lock.

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """The results, in order. After a failure no further item is begun, and the running ones are waited for."""
    if workers == 1 or len(items) < 2:
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    failures: list[BaseException] = []
    # A number for each item instead of a future: for many files, futures would take more memory than everything else.
    left = deque(range(len(items)))

    def work_on() -> None:
        while left:
            try:
                number = left.popleft()
            except IndexError:
                return
            try:
                results[number] = work(items[number])
            except BaseException as error:
                failures.append(error)
                left.clear()
                raise

    with ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="checkpoints") as pool:
        try:
            wait([pool.submit(work_on) for _ in range(min(workers, len(items)))])
        finally:
            left.clear()
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(items))]


# The digest of a file that was saved without holdfast: any content is accepted, and its digest recorded.
UNKNOWN = ""
Reading = Callable[[File], Iterable[bytes | memoryview]]


def unpack(manifest: CheckpointManifest, target: Path, read: Reading, *, workers: int, durable: bool = True) -> None:
    """`target` holds the checkpoint when this returns, and is unchanged when this raises.

    durable: the folder survives a power cut, too. A folder of the pod's own need not: the pod does not survive one.
    """
    partial = target.with_name(f"{disk.RESTORING}{target.name}")
    with disk.translate_os_errors(f"put a checkpoint into {target}"):
        try:
            _prepare(partial, manifest)
            files = map_in_threads(
                lambda file: _unpack_file(file, partial / file.path, read, durable), manifest.files, workers
            )
            if durable:
                _sync_folders(partial, manifest)
            with opened(partial) as descriptor:
                disk.write_manifest(partial, encode(replace(manifest, files=tuple(files))), descriptor)
            if os.path.lexists(target):
                disk.delete_folder_atomically(target)
            disk.rename(partial, target)
        except (OSError, StorageFull, Corrupt):
            # A restore that can't be finished must not fill the volume; after a network fault it is continued.
            disk.remove_any(partial)
            raise


class VerifiedStream:
    """Verifies a file's content while it is streamed: raises at the end, or on excess data, if it differs."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def verified(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for chunk in chunks:
            view = memoryview(chunk)
            self._size += view.nbytes
            if self._size > self._file.size:
                break
            self._digest.update(view)
            yield view
        self._check()

    @property
    def file(self) -> File:
        """The file with its actual size and digest, at its own path."""
        return File(self._file.path, self._size, self._digest.hexdigest())

    def _check(self) -> None:
        expected = self._file
        if self._size != expected.size:
            found = f"more than {expected.size}" if self._size > expected.size else str(self._size)
            raise Corrupt(f"{expected.path} should have {expected.size} bytes and has {found}")
        if expected.sha256 not in (UNKNOWN, self._digest.hexdigest()):
            raise Corrupt(f"the content of {expected.path} is not what was saved: its digest differs")


def verify_stream(file: File, read: Reading) -> None:
    """Raise Corrupt unless the content has the size and the digest of the file."""
    for _ in VerifiedStream(file).verified(read(file)):
        pass


def _prepare(partial: Path, manifest: CheckpointManifest) -> None:
    """Create the folders for the files, and remove all but the files that an earlier attempt has unpacked."""
    if partial.is_symlink():
        disk.remove_any(partial)
    disk.make_folder(partial)
    wanted = {partial / file.path for file in manifest.files}
    folders = {parent for path in wanted for parent in path.parents if parent.is_relative_to(partial)}
    _clear(partial, wanted, folders)
    for folder in sorted(folders):
        disk.make_folder(folder)


def _clear(folder: Path, wanted: set[Path], folders: set[Path]) -> None:
    for path in [folder / name for name in disk.names_in(folder)]:
        if path in folders and path.is_dir() and not path.is_symlink():
            _clear(path, wanted, folders)
        elif path not in wanted or path.is_symlink() or not path.is_file():
            disk.remove_any(path)


def _unpack_file(file: File, target: Path, read: Reading, durable: bool) -> File:
    if _is_unpacked(file, target, durable):
        return replace(file, stored_at="")
    try:
        return _write(file, target, read, durable)
    except Corrupt:
        # Retry once before the file counts as damaged: the network, or a cache on the way, may have garbled it.
        return _write(file, target, read, durable)


def _is_unpacked(file: File, target: Path, durable: bool) -> bool:
    """Whether an earlier attempt has unpacked the file."""
    try:
        with confined_files.regular(target.parent, target.name) as path:
            is_same = path.stat().st_size == file.size and sha256_of(path) == file.sha256
            if is_same and durable:
                disk.sync_file(path)
            return is_same
    except (FileNotFoundError, IsADirectoryError, confined_files.LeavesFolder):
        return False


def _write(file: File, target: Path, read: Reading, durable: bool) -> File:
    stream = VerifiedStream(file)
    disk.write_stream(target, stream.verified(read(file)), durable=durable)
    return stream.file


def _sync_folders(partial: Path, manifest: CheckpointManifest) -> None:
    for folder in {(partial / file.path).parent for file in manifest.files}:
        disk.sync(folder)
