"""The files of a checkpoint's folder: listing, change detection, digests, and crash-safe changes."""

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
# The paths double with every level where links lead to folders that hold such links.
MAX_LINKED = 1000


class FileStamp(NamedTuple):
    """Changes when a file is written to or replaced, even if its size stays the same."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int
    device: int = 0


class FileEntry(NamedTuple):
    path: str
    stamp: FileStamp


class FolderListing(NamedTuple):
    """The files of a folder that stays open: each file is read from the folder that was listed."""

    where: Path
    descriptor: int
    content: tuple[FileEntry, ...]

    def must_be(self, expected: tuple[FileEntry, ...] | None) -> None:
        """Raise Incomplete unless there are files, and they are the expected ones."""
        if not self.content:
            raise Incomplete(f"{self.where} holds no file yet")
        if expected is not None and self.content != expected:
            raise Incomplete(f"{self.where} was saved anew meanwhile: it is looked at again")

    @contextlib.contextmanager
    def reading(self, entry: FileEntry) -> Iterator[Path]:
        """A path to read the file; raises Incomplete if another file has replaced it."""
        with contextlib.ExitStack() as stack:
            try:
                with _translate_concurrent_changes(self.where):
                    descriptor = stack.enter_context(found(self.descriptor, entry.path, self.where))
            except LeavesFolder:
                raise UnsafeContent(_leaves_message(self.where / entry.path)) from None
            if _stamp(os.fstat(descriptor)) != entry.stamp:
                raise Incomplete(f"{self.where / entry.path} was written to while it was read: it is taken again later")
            yield reopened(descriptor)


@contextlib.contextmanager
def listing(folder: Path) -> Iterator[FolderListing]:
    with contextlib.ExitStack() as stack:
        with _translate_concurrent_changes(folder):
            descriptor = stack.enter_context(opened(folder))
        yield FolderListing(folder, descriptor, _listed(descriptor, folder))


def list_files(folder: Path) -> tuple[FileEntry, ...]:
    """Every file, by path. A link that stays in the folder counts as its target; other links are refused."""
    with listing(folder) as listed:
        return listed.content


def _listed(descriptor: int, folder: Path) -> tuple[FileEntry, ...]:
    entries: list[FileEntry] = []
    with (
        _translate_concurrent_changes(folder),
        contextlib.closing(_Walk(descriptor, folder).files(descriptor, "", ())) as walk,
    ):
        for entry in walk:
            entries.append(entry)
            if len(entries) > MAX_FILES:
                break
    for entry in entries:
        check_path(entry.path)
    check_path_set(entry.path for entry in entries)
    entries.sort()
    return tuple(entries)


def sha256_of(file: Path) -> str:
    """The digest of a file. The file is read in chunks: the memory does not depend on its size."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        view = memoryview(bytearray(max(1, min(CHUNK_BYTES, size))))
        while count := source.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


def read_small_file(file: Path, limit: int) -> bytes | None:
    """The content of a small file of holdfast, at most one byte more than the limit; None if there is no file.

    A pipe or a link that a training has put there reads as empty: a pipe would block for ever, a link lead anywhere.
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
    """Raise Incomplete if the content of the folder has changed."""
    if list_files(folder) != before:
        raise Incomplete(f"{folder} was written to while it was read: it is taken again when it is quiet")


class _Walk:
    """Walks a folder. An empty folder is walked once: nested links may lead to it exponentially often."""

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
            for item in sorted(listing, key=lambda item: item.name):
                if not below and item.name.startswith(HOLDFAST_PREFIX):
                    continue
                for entry in self._files_of(folder, item, f"{below}{item.name}", (*above, itself)):
                    is_empty = False
                    yield entry
        if is_empty:
            self._empty.add(itself)

    def _files_of(
        self, folder: int, item: os.DirEntry[str], path: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[FileEntry]:
        if item.is_symlink():
            with self._link_target(path) as target:
                yield from self._files_at(target, path, above)
        elif item.is_dir(follow_symlinks=False):
            with _closing(os.open(item.name, FOLDER, dir_fd=folder)) as inner:
                yield from self.files(inner, f"{path}/", above)
        elif item.is_file(follow_symlinks=False):
            yield FileEntry(path, _stamp(item.stat(follow_symlinks=False)))
        else:
            raise self._unsupported(path)

    def _files_at(self, target: int, path: str, above: tuple[tuple[int, int], ...]) -> Iterator[FileEntry]:
        """The files at the target of a link; the times of the link itself do not count."""
        status = os.fstat(target)
        if stat.S_ISDIR(status.st_mode):
            self._linked += 1
            if self._linked > MAX_LINKED:
                raise UnsafeContent(
                    f"links lead to folders of {self._where} in more than {MAX_LINKED} ways: remove some"
                )
            with _closing(os.open(reopened(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as inner:
                yield from self.files(inner, f"{path}/", above)
        elif stat.S_ISREG(status.st_mode):
            yield FileEntry(path, _stamp(status))
        else:
            raise self._unsupported(path)

    @contextlib.contextmanager
    def _link_target(self, path: str) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            try:
                target = stack.enter_context(found(self._root, path, self._where))
            except LeavesFolder:
                raise UnsafeContent(_leaves_message(self._where / path)) from None
            except OSError:
                raise UnsafeContent(
                    f"the link {self._where / path} leads nowhere: remove it from the checkpoint"
                ) from None
            yield target

    def _unsupported(self, path: str) -> UnsafeContent:
        return UnsafeContent(f"{self._where / path} is neither a file nor a folder: remove it from the checkpoint")


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translate_concurrent_changes(folder: Path) -> Iterator[None]:
    """Turn the errors of a folder that vanishes, or is replaced by a link, while it is read into Incomplete."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Incomplete(f"{folder} is being changed: {error.filename} was there a moment ago") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Incomplete(f"{folder} is being changed: {error.filename} is a link all at once") from None


def _leaves_message(link: Path) -> str:
    return f"the link {link} leads out of the checkpoint's folder: save a copy of the file instead"


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_dev)


# Every change that this package makes to a file system, each durable and in an order that survives a crash.
#
# All changes are made here, in calls of `os` alone, so that a test can end the process, or cut the power, at any call.
# Each call is relative to a folder that was opened without following a link: the training, which shares the volume,
# can't redirect it.

# Prefixes that no training program uses: remains of interrupted operations differ from files that a program is writing.
RESTORING = f"{HOLDFAST_PREFIX}restoring-"
DELETED = f"{HOLDFAST_PREFIX}deleted-"
PARTIAL = f"{HOLDFAST_PREFIX}partial-"
# Each level of folders needs an open descriptor during removal.
MAX_LEVELS = 200

# Errors of the volume itself, and what to do about them; any other error becomes a StoreError.
_VOLUME_ERRORS: dict[int, tuple[type[StoreError], str]] = {
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
    """Turn an OSError of the volume into a StoreError that tells what to do."""
    try:
        yield
    except OSError as error:
        kind, hint = _VOLUME_ERRORS.get(error.errno or 0, (StoreError, "look at the volume and at the node's log"))
        filename = f" ({error.filename})" if error.filename else ""
        hint = hint.format(uid=os.getuid(), gid=os.getgid())
        raise kind(f"can't {tried}: {error.strerror or type(error).__name__}{filename}; {hint}") from None


def write(path: Path, content: bytes) -> None:
    """Replace the file atomically: after a crash it holds the new content or the old one."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    write_stream(partial, (content,))
    with opened(partial.parent) as source, opened(path.parent) as target:
        os.replace(partial.name, path.name, src_dir_fd=source, dst_dir_fd=target)
        os.fsync(target)


def write_manifest(folder: Path, content: bytes, descriptor: int) -> None:
    """As `write`, into the folder of the descriptor, even if another folder has its name meanwhile.

    No temporary file appears in the folder: until the manifest is there, it can be seen that the folder was renamed.
    """
    partial = folder.with_name(f"{PARTIAL}{folder.name}")
    write_stream(partial, (content,))
    with opened(partial.parent) as above:
        os.replace(partial.name, MANIFEST, src_dir_fd=above, dst_dir_fd=descriptor)
    os.fsync(descriptor)


def write_stream(path: Path, chunks: Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """Write a file with this content; if `durable`, it is synced. The caller has to sync the folder.

    A link at the path is not followed, and a pipe does not block.
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
    """Create the file if it is missing, and set its times to now."""
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
    """Sync a file by a path that stays open, see `confined_files.reopened`."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(folder: Path) -> None:
    with opened(folder) as descriptor:
        os.fsync(descriptor)


def make_folder(folder: Path) -> None:
    """Create the folder and its parents, each synced in its parent. A link is no folder: it might lead anywhere."""
    with contextlib.suppress(FileNotFoundError), opened(folder):
        return
    make_folder(folder.parent)
    with opened(folder.parent) as above:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder.name, dir_fd=above)
        os.fsync(above)


def rename(source: Path, target: Path) -> None:
    """Rename a folder durably."""
    with opened(source.parent) as old, opened(target.parent) as new:
        os.rename(source.name, target.name, src_dir_fd=old, dst_dir_fd=new)
        os.fsync(new)
        if source.parent != target.parent:
            os.fsync(old)


def delete_folder_atomically(folder: Path) -> None:
    """Remove a folder at once, by a rename, and free its space after that."""
    trash = folder.with_name(f"{DELETED}{folder.name}")
    remove_any(trash)
    rename(folder, trash)
    remove_any(trash)


def remove_any(path: Path) -> None:
    """Remove a file, a folder or a link; the target of a link stays."""
    with contextlib.suppress(FileNotFoundError), opened(path.parent) as above:
        _remove(path.name, above, path, 0)


def _remove(name: str, above: int, path: Path, level: int) -> None:
    mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=above)
        return
    if level > MAX_LEVELS:
        raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {MAX_LEVELS} deep", str(path))
    # A folder without permissions for its owner can't be emptied.
    if mode & 0o700 != 0o700:
        _make_writable(name, above)
    folder = os.open(name, FOLDER, dir_fd=above)
    try:
        for inner in os.listdir(folder):  # noqa: PTH208  # of a descriptor
            with contextlib.suppress(FileNotFoundError):
                _remove(inner, folder, path, level + 1)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


def _make_writable(name: str, above: int) -> None:
    folder = os.open(name, NAMED | os.O_DIRECTORY, dir_fd=above)
    try:
        os.chmod(reopened(folder), os.fstat(folder).st_mode | 0o700)  # noqa: PTH101
    finally:
        os.close(folder)


def names_in(folder: Path) -> list[str]:
    with opened(folder) as descriptor:
        return os.listdir(descriptor)  # noqa: PTH208


def remove_interrupted(folder: Path) -> None:
    """Remove the remains of interrupted deletions, restores and writes from an attempt's folder."""
    for name in names_in(folder):
        if name.startswith((RESTORING, DELETED, PARTIAL)):
            remove_any(folder / name)
