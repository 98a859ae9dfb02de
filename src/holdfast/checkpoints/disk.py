"""Every change that this package makes to a file system, each durable and in an order that survives a crash.

All of it is here, in calls of `os` alone, so that a test can end the process, or cut the power, at any of them.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.checkpoints.errors import BadAddress, Full, ReadOnly, StoreError, WrongCredentials
from holdfast.checkpoints.names import MANIFEST, OWN

# Names that no training program gives: leftovers can be told from what a program is writing.
RESTORING = f"{OWN}restoring-"
DELETED = f"{OWN}deleted-"
PARTIAL = f"{OWN}partial-"

# Trouble with the volume itself, and what to do about it; anything else is raised as it is.
_TROUBLE: dict[int, tuple[type[StoreError], str]] = {
    errno.ENOSPC: (Full, "remove old checkpoints, or give the volume more space"),
    errno.EDQUOT: (Full, "remove old checkpoints, or raise the quota"),
    errno.EFBIG: (Full, "write smaller files, or use a volume that takes larger ones"),
    errno.EROFS: (ReadOnly, "mount a volume that can be written to"),
    errno.EACCES: (WrongCredentials, "let user {uid} or group {gid} read and write it"),
    errno.EPERM: (WrongCredentials, "let user {uid} or group {gid} read and write it"),
    errno.ENOTDIR: (BadAddress, "a file is in the place of a folder: remove it"),
}


@contextlib.contextmanager
def explained(tried: str) -> Iterator[None]:
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
    _replace(path, path.with_name(f"{PARTIAL}{path.name}"), content)


def write_manifest(folder: Path, content: bytes) -> None:
    """As `write`, but nothing else ever appears in the folder: that it was renamed can be seen up to this moment."""
    _replace(folder / MANIFEST, folder.with_name(f"{PARTIAL}{folder.name}"), content)


def _replace(path: Path, partial: Path, content: bytes) -> None:
    write_stream(partial, (content,))
    os.replace(partial, path)  # noqa: PTH105  # see the module's first lines
    sync(path.parent)


def write_stream(path: Path, chunks: Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """A new file with this content; if `durable`, on the disk when it returns. Its folder is the caller's to sync.

    A link in its place is not followed, and a pipe not waited at.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    try:
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """It and its parents, each of them noted in the one above. A link is no folder: it might lead anywhere."""
    if folder.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "a link is in the place of a folder", str(folder))
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)  # noqa: PTH102
    sync(folder.parent)


def rename(source: Path, target: Path) -> None:
    """A folder gets its new name, for good."""
    os.rename(source, target)  # noqa: PTH104
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def remove(folder: Path) -> None:
    """Let a folder vanish at once, by another name, and free its space after that."""
    trash = folder.with_name(f"{DELETED}{folder.name}")
    discard(trash)
    rename(folder, trash)
    discard(trash)


def discard(path: Path) -> None:
    """Remove whatever is there; a link goes, and what it leads to stays."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(path)  # noqa: PTH108
        return
    # A folder that its owner may not change can't be emptied, whatever made it so.
    if mode & 0o700 != 0o700:
        os.chmod(path, mode | 0o700)  # noqa: PTH101
    with os.scandir(path) as entries:
        inside = [entry.path for entry in entries]
    for entry in inside:
        discard(Path(entry))
    os.rmdir(path)  # noqa: PTH106


def remove_leftovers(folder: Path) -> None:
    """What interrupted deletions, restores and writes have left in an attempt's folder."""
    for path in list(folder.iterdir()):
        if path.name.startswith((RESTORING, DELETED, PARTIAL)):
            discard(path)
