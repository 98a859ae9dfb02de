"""What is in the folder of a checkpoint: its files, how to tell that they changed, and their digests."""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoints.confined_files import FOLDER, NAMED, LeavesFolder, found, opened, reopened
from holdfast.checkpoints.errors import (
    AccessDenied,
    Incomplete,
    InvalidStoreUrl,
    ReadOnly,
    StorageFull,
    StoreError,
    UnsafeContent,
)
from holdfast.checkpoints.manifest import (
    HOLDFAST_PREFIX,
    MANIFEST,
    MAX_FILES,
    check_depth,
    check_folders,
    check_path,
    check_path_set,
)

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


# Every change that this package makes to a file system, each durable and in an order that survives a crash.
#
# All of it is here, in calls of `os` alone, so that a test can end the process, or cut the power, at any of them.
# Each is made relative to a folder that was opened without following a link: the training, which shares the volume,
# can't lead it elsewhere.

# Names that no training program gives: leftovers can be told from what a program is writing.
RESTORING = f"{HOLDFAST_PREFIX}restoring-"
DELETED = f"{HOLDFAST_PREFIX}deleted-"
PARTIAL = f"{HOLDFAST_PREFIX}partial-"
# Each level of folders takes a descriptor while it is removed.
MAX_LEVELS = 200

# Trouble with the volume itself, and what to do about it; anything else is raised as it is.
_TROUBLE: dict[int, tuple[type[StoreError], str]] = {
    errno.ENOSPC: (StorageFull, "remove old checkpoints, or give the volume more space"),
    errno.EDQUOT: (StorageFull, "remove old checkpoints, or raise the quota"),
    errno.EFBIG: (StorageFull, "write smaller files, or use a volume that takes larger ones"),
    errno.EROFS: (ReadOnly, "mount a volume that can be written to"),
    errno.EACCES: (AccessDenied, "let user {uid} or group {gid} read and write it"),
    errno.EPERM: (AccessDenied, "let user {uid} or group {gid} read and write it"),
    errno.ENOTDIR: (InvalidStoreUrl, "a file is in the place of a folder: remove it"),
}


@contextlib.contextmanager
def translate_os_errors(tried: str) -> Iterator[None]:
    """Turn an error of the volume into one that says what to do."""
    try:
        yield
    except OSError as error:
        kind, hint = _TROUBLE.get(error.errno or 0, (StoreError, "look at the volume and at the node's log"))
        place = f" ({error.filename})" if error.filename else ""
        hint = hint.format(uid=os.getuid(), gid=os.getgid())
        raise kind(f"can't {tried}: {error.strerror or type(error).__name__}{place}; {hint}") from None


def write(path: Path, content: bytes) -> None:
    """The file holds this, or what it held before, whenever the machine stops."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    write_stream(partial, (content,))
    with opened(partial.parent) as source, opened(path.parent) as target:
        os.replace(partial.name, path.name, src_dir_fd=source, dst_dir_fd=target)
        os.fsync(target)


def write_manifest(folder: Path, content: bytes, descriptor: int) -> None:
    """As `write`, into the folder that the descriptor names, whatever has its name meanwhile.

    Nothing else ever appears in the folder: that it was renamed can be seen up to this moment.
    """
    partial = folder.with_name(f"{PARTIAL}{folder.name}")
    write_stream(partial, (content,))
    with opened(partial.parent) as above:
        os.replace(partial.name, MANIFEST, src_dir_fd=above, dst_dir_fd=descriptor)
    os.fsync(descriptor)


def write_stream(path: Path, chunks: Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """A new file with this content; if `durable`, on the disk when it returns. Its folder is the caller's to sync.

    A link in its place is not followed, and a pipe not waited at.
    """
    descriptor = _open_to_write(path, os.O_TRUNC)
    try:
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def touch(path: Path) -> None:
    """The file is there, and was changed just now."""
    descriptor = _open_to_write(path, 0)
    try:
        os.utime(descriptor)
    finally:
        os.close(descriptor)


def _open_to_write(path: Path, flags: int) -> int:
    flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with opened(path.parent) as folder:
        return os.open(path.name, flags, 0o666, dir_fd=folder)


def sync_file(file: Path) -> None:
    """Of a path that somebody holds open, see `beneath.reopened`."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(folder: Path) -> None:
    with opened(folder) as descriptor:
        os.fsync(descriptor)


def make_folder(folder: Path) -> None:
    """It and its parents, each of them noted in the one above. A link is no folder: it might lead anywhere."""
    with contextlib.suppress(FileNotFoundError), opened(folder):
        return
    make_folder(folder.parent)
    with opened(folder.parent) as above:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder.name, dir_fd=above)
        os.fsync(above)


def rename(source: Path, target: Path) -> None:
    """A folder gets its new name, for good."""
    with opened(source.parent) as old, opened(target.parent) as new:
        os.rename(source.name, target.name, src_dir_fd=old, dst_dir_fd=new)
        os.fsync(new)
        if source.parent != target.parent:
            os.fsync(old)


def delete_folder_atomically(folder: Path) -> None:
    """Let a folder vanish at once, by another name, and free its space after that."""
    trash = folder.with_name(f"{DELETED}{folder.name}")
    remove_any(trash)
    rename(folder, trash)
    remove_any(trash)


def remove_any(path: Path) -> None:
    """Remove whatever is there; a link goes, and what it leads to stays."""
    with contextlib.suppress(FileNotFoundError), opened(path.parent) as above:
        _discard(path.name, above, path, 0)


def _discard(name: str, above: int, path: Path, level: int) -> None:
    mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=above)
        return
    if level > MAX_LEVELS:
        raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {MAX_LEVELS} deep", str(path))
    # A folder that its owner may not change can't be emptied, whatever made it so.
    if mode & 0o700 != 0o700:
        _allow(name, above)
    folder = os.open(name, FOLDER, dir_fd=above)
    try:
        for inner in os.listdir(folder):  # noqa: PTH208  # of a descriptor
            with contextlib.suppress(FileNotFoundError):
                _discard(inner, folder, path, level + 1)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


def _allow(name: str, above: int) -> None:
    folder = os.open(name, NAMED | os.O_DIRECTORY, dir_fd=above)
    try:
        os.chmod(reopened(folder), os.fstat(folder).st_mode | 0o700)  # noqa: PTH101
    finally:
        os.close(folder)


def names_in(folder: Path) -> list[str]:
    with opened(folder) as descriptor:
        return os.listdir(descriptor)  # noqa: PTH208


def remove_leftovers(folder: Path) -> None:
    """What interrupted deletions, restores and writes have left in an attempt's folder."""
    for name in names_in(folder):
        if name.startswith((RESTORING, DELETED, PARTIAL)):
            remove_any(folder / name)
