"""What is in the folder of a checkpoint: its files, how to tell that they changed, and their digests."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoints.errors import Incomplete, Refused
from holdfast.checkpoints.names import OWN
from holdfast.checkpoints.paths import MAX_FILES, check_path, check_together

CHUNK_BYTES = 1 << 20


class Stamp(NamedTuple):
    """What changes when a file is written to or replaced, even if its size stays."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int


class Entry(NamedTuple):
    path: str
    stamp: Stamp


def entries(folder: Path) -> tuple[Entry, ...]:
    """Every file, by path. Links that stay in the folder count as what they lead to; others are refused."""
    found: list[Entry] = []
    try:
        root = os.path.realpath(folder, strict=True)
        for entry in _walk(folder, "", root, (root,)):
            found.append(entry)
            if len(found) > MAX_FILES:
                break
    except FileNotFoundError as error:
        raise Incomplete(f"{folder} is being changed: {error.filename} was there a moment ago") from None
    for entry in found:
        check_path(entry.path)
    check_together(entry.path for entry in found)
    found.sort()
    return tuple(found)


def sha256_of(file: Path) -> str:
    """The digest, read in pieces: the memory that it takes does not depend on the file's size."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        view = memoryview(bytearray(max(1, min(CHUNK_BYTES, size))))
        while count := opened.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


def read_own(file: Path, limit: int) -> bytes | None:
    """A small file of holdfast's own, or one byte more than the limit; None if there is none.

    What a training has put in its place reads as empty: a pipe would be waited at for ever, a link may lead anywhere.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return b""
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read(limit + 1)
    finally:
        os.close(descriptor)


def unchanged(folder: Path, before: tuple[Entry, ...]) -> None:
    """Raise if the folder holds anything else than it did."""
    if entries(folder) != before:
        raise Incomplete(f"{folder} was written to while it was read: it is taken again when it is quiet")


def _walk(folder: Path, below: str, root: str, stack: tuple[str, ...]) -> Iterator[Entry]:
    with os.scandir(folder) as listing:
        for found in sorted(listing, key=lambda found: found.name):
            if not below and found.name.startswith(OWN):
                continue
            path = f"{below}{found.name}"
            real = found.path
            if found.is_symlink():
                real = _inside(found.path, root)
            if found.is_dir():
                resolved = os.path.realpath(real)
                if resolved in stack:
                    raise Refused(f"the link {found.path} leads to a folder that holds it: remove it")
                yield from _walk(Path(found.path), f"{path}/", root, (*stack, resolved))
            elif found.is_file():
                yield Entry(path, _stamp(found.stat()))  # of what a link leads to: its own says nothing
            else:
                raise Refused(f"{found.path} is neither a file nor a folder: remove it from the checkpoint")


def _inside(link: str, root: str) -> str:
    try:
        real = os.path.realpath(link, strict=True)
    except OSError:
        raise Refused(f"the link {link} leads nowhere: remove it from the checkpoint") from None
    if os.path.commonpath((real, root)) != root:
        raise Refused(f"the link {link} leads out of the checkpoint's folder: save a copy of the file instead")
    return real


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
