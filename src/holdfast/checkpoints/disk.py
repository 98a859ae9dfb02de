"""Every change that this package makes to a file system, each durable and in an order that survives a crash.

All of it is here, in calls of `os` alone, so that a test can end the process, or cut the power, at any of them. Each is
made relative to a folder that was opened without following a link: the training, which shares the volume, can't lead
it elsewhere.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.checkpoints.beneath import FOLDER, NAMED, opened, reopened
from holdfast.checkpoints.errors import AccessDenied, InvalidStoreUrl, ReadOnly, StorageFull, StoreError
from holdfast.checkpoints.names import HOLDFAST_PREFIX, MANIFEST

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
