"""Gives a folder that is whole the name of a checkpoint.

A checkpoint that has the name already (saved within the epoch, or resumed from) is replaced, and the shards of several
ranks come together. Whenever the process is killed, what has the name is whole, or its markers say that it is not; what
was whole under that name before is then beside it, until the new one is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from holdfast.train import markers
from holdfast.train.errors import CheckpointFailed
from holdfast.train.markers import SaveId

LOCK = ".holdfast-lock"
REPLACED = ".holdfast-replaced-"
DROPPED = ".holdfast-dropped"
JOINING = ".holdfast-joining"
# A volume that has no such promise to give, as some mounted buckets, for folders at least.
CANT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
# From the kernel's headers.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def publish(partial: Path, final: Path) -> None:
    if not _took_name(partial, final):
        _replace(partial, final)
    _settle(final.parent)


def publish_shard(partial: Path, final: Path, save: SaveId, rank: int) -> None:
    """The first rank's folder gets the name, with a marker that says how many shards are to come; the others join it.

    On a volume of the rank's own the shard stays alone there: its marker says so.
    """
    with _locked(final.parent):
        place = final.with_name(JOINING) if _must_stay(final, save) else final
        if _took_name(partial, place):
            pass
        elif not _is_of(place, save):
            _in_two_steps(partial, place)
        elif not (place / markers.shard_name(rank)).exists():
            _join(partial, place, rank)
        if place != final and markers.is_complete(place):
            _replace(place, final)
            shutil.rmtree(place, ignore_errors=True)
        _settle(final.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANT_SYNC:
            raise
    finally:
        os.close(descriptor)


def _took_name(partial: Path, final: Path) -> bool:
    try:
        partial.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _is_of(folder: Path, save: SaveId) -> bool:
    marker = markers.read_marker(folder)
    return marker is not None and marker.save == save


def _must_stay(final: Path, save: SaveId) -> bool:
    """Whether it is complete and goes only when the new one is, too.

    That all shards of this attempt are here says that the ranks share the volume. What was resumed from does not say
    it: every rank was given all shards of that.
    """
    marker = markers.read_marker(final)
    if marker is None or marker.save == save or marker.save.attempt != save.attempt:
        return False
    return markers.is_complete(final)


def _join(partial: Path, final: Path, rank: int) -> None:
    marker = partial / markers.shard_name(rank)
    _move_into(final, partial, except_for=marker)
    marker.rename(final / marker.name)
    sync_folder(final)


def _move_into(target: Path, source: Path, except_for: Path) -> None:
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path == except_for:
            continue
        if path.is_dir() and place.is_dir() and not path.is_symlink() and not place.is_symlink():
            _move_into(place, path, except_for)
        elif os.path.lexists(place):
            raise CheckpointFailed(f"two ranks have saved {place}: give each rank's files names of their own")
        else:
            path.rename(place)
    sync_folder(target)


def replaced(final: Path) -> Path:
    """Where a checkpoint is that another one takes the name of, until that one is whole."""
    return final.with_name(f"{REPLACED}{final.name}")


def recover(checkpoint_dir: Path) -> None:
    """A process was killed between the two steps of a replacement: the old checkpoint gets its name again."""
    for old, final in _all_replaced(checkpoint_dir):
        if not final.exists():
            with contextlib.suppress(OSError):  # another process has done it
                old.rename(final)


def _replace(partial: Path, final: Path) -> None:
    """Another folder has the name. In one step where the volume can do that; NFS, for one, takes two."""
    if not exchange(partial, final):
        _in_two_steps(partial, final)


def _in_two_steps(partial: Path, final: Path) -> None:
    _make_way(final)
    try:
        partial.rename(final)
    except OSError:
        with contextlib.suppress(OSError):
            replaced(final).rename(final)
        raise


def _make_way(final: Path) -> None:
    """What is whole stays beside the name; shards of a save that nobody ends any more do not."""
    if markers.CHECKPOINT.fullmatch(final.name) and markers.is_whole(final):
        shutil.rmtree(replaced(final), ignore_errors=True)
        final.rename(replaced(final))
    else:
        dropped = final.with_name(DROPPED)
        shutil.rmtree(dropped, ignore_errors=True)
        final.rename(dropped)
        shutil.rmtree(dropped, ignore_errors=True)


def _settle(checkpoint_dir: Path) -> None:
    """The new name is on the disk before what it replaces is removed."""
    sync_folder(checkpoint_dir)
    for old, final in _all_replaced(checkpoint_dir):
        if markers.is_whole(final):
            shutil.rmtree(old, ignore_errors=True)


def _all_replaced(checkpoint_dir: Path) -> list[tuple[Path, Path]]:
    """Each with the name that it had."""
    found = ((old, old.name[len(REPLACED) :]) for old in checkpoint_dir.glob(f"{REPLACED}*"))
    return [(old, old.with_name(name)) for old, name in found if markers.CHECKPOINT.fullmatch(name)]


def exchange(one: Path, other: Path) -> bool:
    """Whether the two have swapped their names."""
    try:
        import ctypes

        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, TypeError, AttributeError):
        return False
    done: int = renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return done == 0


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One rank at a time; the lock goes with the process that holds it, and is known to all machines of a volume."""
    import fcntl  # not on every system that a script is tried on

    with (folder / LOCK).open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        yield
