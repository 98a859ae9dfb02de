"""What is in the folder of a checkpoint: its files, how to tell that they changed, and their digests."""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoints.beneath import FOLDER, LeavesFolder, found, opened, reopened
from holdfast.checkpoints.errors import Incomplete, UnsafeContent
from holdfast.checkpoints.names import HOLDFAST_PREFIX
from holdfast.checkpoints.paths import MAX_FILES, check_depth, check_folders, check_path, check_path_set

CHUNK_BYTES = 1 << 20
# Links to folders that hold such links double with every level.
MAX_LINKED = 1000


class FileStamp(NamedTuple):
    """What changes when a file is written to or replaced, even if its size stays."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int
    device: int = 0


class FileEntry(NamedTuple):
    path: str
    stamp: FileStamp


class Listing(NamedTuple):
    """The files of a folder, which stays open: each is read where it was listed."""

    where: Path
    descriptor: int
    content: tuple[FileEntry, ...]

    def must_be(self, expected: tuple[FileEntry, ...] | None) -> None:
        """Raise Incomplete unless there are files, and those that were found complete."""
        if not self.content:
            raise Incomplete(f"{self.where} holds no file yet")
        if expected is not None and self.content != expected:
            raise Incomplete(f"{self.where} was saved anew meanwhile: it is looked at again")

    @contextlib.contextmanager
    def reading(self, entry: FileEntry) -> Iterator[Path]:
        """Where the content of a file is read; raises Incomplete if there is another file in its place."""
        with contextlib.ExitStack() as stack:
            try:
                with _being_changed(self.where):
                    there = stack.enter_context(found(self.descriptor, entry.path, self.where))
            except LeavesFolder:
                raise UnsafeContent(_leaves(self.where / entry.path)) from None
            if _stamp(os.fstat(there)) != entry.stamp:
                raise Incomplete(f"{self.where / entry.path} was written to while it was read: it is taken again later")
            yield reopened(there)


@contextlib.contextmanager
def listing(folder: Path) -> Iterator[Listing]:
    with contextlib.ExitStack() as stack:
        with _being_changed(folder):
            descriptor = stack.enter_context(opened(folder))
        yield Listing(folder, descriptor, _listed(descriptor, folder))


def list_files(folder: Path) -> tuple[FileEntry, ...]:
    """Every file, by path. Links that stay in the folder count as what they lead to; others are refused."""
    with listing(folder) as there:
        return there.content


def _listed(descriptor: int, folder: Path) -> tuple[FileEntry, ...]:
    there: list[FileEntry] = []
    with _being_changed(folder), contextlib.closing(_Walk(descriptor, folder).files(descriptor, "", ())) as walk:
        for entry in walk:
            there.append(entry)
            if len(there) > MAX_FILES:
                break
    for entry in there:
        check_path(entry.path)
    check_path_set(entry.path for entry in there)
    there.sort()
    return tuple(there)


def sha256_of(file: Path) -> str:
    """The digest, read in pieces: the memory that it takes does not depend on the file's size."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        view = memoryview(bytearray(max(1, min(CHUNK_BYTES, size))))
        while count := source.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


def read_small_file(file: Path, limit: int) -> bytes | None:
    """A small file of holdfast's own, or one byte more than the limit; None if there is none.

    What a training has put in its place reads as empty: a pipe would be waited at for ever, a link may lead anywhere.
    """
    try:
        with opened(file.parent) as above:
            descriptor = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return b""
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        with os.fdopen(descriptor, "rb", closefd=False) as source:
            return source.read(limit + 1)
    finally:
        os.close(descriptor)


def ensure_unchanged(folder: Path, before: tuple[FileEntry, ...]) -> None:
    """Raise if the folder holds anything else than it did."""
    if list_files(folder) != before:
        raise Incomplete(f"{folder} was written to while it was read: it is taken again when it is quiet")


class _Walk:
    """A folder without files is walked once: nested links may name it exponentially often."""

    def __init__(self, root: int, where: Path) -> None:
        self._root = root
        self._where = where
        self._empty: set[tuple[int, int]] = set()
        self._folders = 0
        self._linked = 0

    def files(self, folder: int, below: str, above: tuple[tuple[int, int], ...]) -> Generator[FileEntry, None, None]:
        found_in = os.fstat(folder)
        itself = found_in.st_dev, found_in.st_ino
        if itself in self._empty:
            return
        if itself in above:
            raise UnsafeContent(f"the link {self._where / below} leads to a folder that holds it: remove it")
        self._folders += 1
        check_folders(self._folders)
        check_depth(below)
        is_empty = True
        with os.scandir(folder) as listing:
            for one in sorted(listing, key=lambda one: one.name):
                if not below and one.name.startswith(HOLDFAST_PREFIX):
                    continue
                for entry in self._files_of(folder, one, f"{below}{one.name}", (*above, itself)):
                    is_empty = False
                    yield entry
        if is_empty:
            self._empty.add(itself)

    def _files_of(
        self, folder: int, one: os.DirEntry[str], path: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[FileEntry]:
        if one.is_symlink():
            with self._led_to(path) as there:
                yield from self._files_at(there, path, above)
        elif one.is_dir(follow_symlinks=False):
            with _closing(os.open(one.name, FOLDER, dir_fd=folder)) as inner:
                yield from self.files(inner, f"{path}/", above)
        elif one.is_file(follow_symlinks=False):
            yield FileEntry(path, _stamp(one.stat(follow_symlinks=False)))
        else:
            raise self._odd(path)

    def _files_at(self, there: int, path: str, above: tuple[tuple[int, int], ...]) -> Iterator[FileEntry]:
        """What a link leads to; its own times say nothing."""
        about = os.fstat(there)
        if stat.S_ISDIR(about.st_mode):
            self._linked += 1
            if self._linked > MAX_LINKED:
                raise UnsafeContent(
                    f"links lead to folders of {self._where} in more than {MAX_LINKED} ways: remove some"
                )
            with _closing(os.open(reopened(there), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as inner:
                yield from self.files(inner, f"{path}/", above)
        elif stat.S_ISREG(about.st_mode):
            yield FileEntry(path, _stamp(about))
        else:
            raise self._odd(path)

    @contextlib.contextmanager
    def _led_to(self, path: str) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            try:
                there = stack.enter_context(found(self._root, path, self._where))
            except LeavesFolder:
                raise UnsafeContent(_leaves(self._where / path)) from None
            except OSError:
                raise UnsafeContent(
                    f"the link {self._where / path} leads nowhere: remove it from the checkpoint"
                ) from None
            yield there

    def _odd(self, path: str) -> UnsafeContent:
        return UnsafeContent(f"{self._where / path} is neither a file nor a folder: remove it from the checkpoint")


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _being_changed(folder: Path) -> Iterator[None]:
    """A folder that vanishes, or is replaced by a link, while it is read."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Incomplete(f"{folder} is being changed: {error.filename} was there a moment ago") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Incomplete(f"{folder} is being changed: {error.filename} is a link all at once") from None


def _leaves(link: Path) -> str:
    return f"the link {link} leads out of the checkpoint's folder: save a copy of the file instead"


def _stamp(about: os.stat_result) -> FileStamp:
    return FileStamp(about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns, about.st_dev)
