"""A copy of a checkpoint that is there whole or not at all, whenever it is interrupted.

It shares no file with its source, not even by hard links: a worker of the old attempt that was cut off may still write.
"""

import contextlib
import os
import shutil
from pathlib import Path

from holdfast.sidecar.checkpoints import is_inner

# A name that no training program gives: leftovers can be told from what a program is writing.
RESTORING = ".holdfast-restoring-"
# Small enough that a signal is noticed between two of them.
CHUNK_BYTES = 4 << 20


def copy(source: Path, target: Path) -> bool:
    """Whether `target` now is what `source` was. False: another folder took the source's place meanwhile."""
    partial = target.with_name(f"{RESTORING}{target.name}")
    before = _identity(source)
    try:
        _copy_folder(source, partial, whole=source)
    except OSError:
        _remove(partial)
        if _identity(source) == before:
            raise
        return False
    if _identity(source) != before:
        _remove(partial)
        return False
    partial.rename(target)
    sync(target.parent)
    return True


def remove_leftovers(folder: Path) -> None:
    """What an interrupted copy has left in an attempt's folder."""
    for path in folder.glob(f"{RESTORING}*"):
        _remove(path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_folder(source: Path, target: Path, whole: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        place = target / path.name
        if path.is_symlink() and is_inner(path, whole):
            place.symlink_to(path.readlink())
        elif path.is_file():
            _copy_file(path, place)
        elif path.is_dir() and not path.is_symlink():
            _copy_folder(path, place, whole)
    # Its owner can always remove it again, whatever the original allows.
    target.chmod(source.stat().st_mode | 0o700)
    sync(target)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as original, target.open("wb") as copied:
        shutil.copyfileobj(original, copied, CHUNK_BYTES)
        copied.flush()
        os.fsync(copied.fileno())
    target.chmod(source.stat().st_mode)


def _identity(folder: Path) -> tuple[int, int] | None:
    """None when there is no such folder any more."""
    with contextlib.suppress(FileNotFoundError):
        found = folder.stat()
        return found.st_dev, found.st_ino
    return None


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
