"""Saves a checkpoint so that its name appears when all of it is on the disk, and at no moment before."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.train.environment import CheckpointFailed, Environment

# The marker that a checkpoint carries: it is written last, and says of what the checkpoint consists.
#
# One rank saves: `.holdfast-complete`. Each rank saves its shard: `.holdfast-complete-{rank}`, and the checkpoint is
# complete when there are as many of them as each declares, all of one save.
#
# A checkpoint that was copied has no marker any more. Its manifest, which the sidecar writes, tells the position then.

WHOLE = ".holdfast-complete"
CHECKPOINT = re.compile(r"checkpoint-epoch-([0-9]{1,15})", re.ASCII)
SHARD = re.compile(re.escape(WHOLE) + r"-([0-9]{1,9})", re.ASCII)
MAX_MARKER_BYTES = 65536
MANIFEST = ".holdfast-manifest.json"
MAX_MANIFEST_BYTES = 4 << 20


class SaveId(NamedTuple):
    """One save, the same for every rank that takes part in it; of one attempt's, no two have the same."""

    attempt: int
    restart: int
    epoch: int
    step: int | None
    """The steps done of the epoch; None when the whole epoch is done."""


class Marker(NamedTuple):
    save: SaveId
    shards: int


def shard_name(rank: int) -> str:
    return f"{WHOLE}-{rank}"


def write_marker(
    file: Path, save: SaveId, *, shards: int, rank: int, metrics: Mapping[str, float] | None = None
) -> None:
    said = {"shards": shards, "ranks": [rank], **save._asdict(), "metrics": dict(metrics or {})}
    file.write_text(json.dumps(said) + "\n", encoding="utf-8")


def read_marker(folder: Path) -> Marker | None:
    """What any marker of the folder says; None where none can be read."""
    return next(_markers(folder), None)


def is_complete(folder: Path) -> bool:
    found = set(_markers(folder))
    if len(found) != 1:  # shards of two saves are no checkpoint
        return False
    ranks = [SHARD.fullmatch(file.name) for file in folder.glob(f"{WHOLE}-*")]
    present = {int(match[1]) for match in ranks if match}
    return (folder / WHOLE).is_file() or present >= set(range(found.pop().shards))


def is_whole(folder: Path) -> bool:
    """Also of a copy, which has a manifest instead of markers."""
    if read_marker(folder) is None:
        return (folder / MANIFEST).is_file()
    return is_complete(folder)


def saved_position(folder: Path) -> tuple[int, int | None]:
    """The epoch, and the steps done of it, None meaning all. Without marker and manifest the name tells the epoch."""
    marker = read_marker(folder)
    if marker is not None:
        return marker.save.epoch, marker.save.step
    match = CHECKPOINT.fullmatch(folder.name)
    return _in_manifest(folder / MANIFEST) or ((int(match[1]) if match else 0), None)


def _in_manifest(file: Path) -> tuple[int, int | None] | None:
    try:
        with file.open("rb") as stream:
            said = json.loads(stream.read(MAX_MANIFEST_BYTES + 1))
        epoch, step = said["epoch"], said.get("step")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_position = all(type(number) is int and number >= 0 for number in (epoch, 0 if step is None else step))
    return (epoch, step) if is_position else None


def _markers(folder: Path) -> Iterator[Marker]:
    for file in sorted(folder.glob(f"{WHOLE}*")):
        marker = _parse(file)
        if marker is not None:
            yield marker


def _parse(file: Path) -> Marker | None:
    try:
        with file.open("rb") as stream:
            said = json.loads(stream.read(MAX_MARKER_BYTES))
        save = SaveId(*(said[name] for name in SaveId._fields))
        shards = said["shards"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = [shards, save.attempt, save.restart, save.epoch, 0 if save.step is None else save.step]
    return Marker(save, shards) if all(type(number) is int and number >= 0 for number in whole) else None


# Gives a folder that is whole the name of a checkpoint.
#
# A checkpoint that has the name already (saved within the epoch, or resumed from) is replaced, and the shards of
# several ranks come together. Whenever the process is killed, what has the name is whole, or its markers say that it
# is not; what was whole under that name before is then beside it, until the new one is whole.

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
        elif not (place / shard_name(rank)).exists():
            _join(partial, place, rank)
        if place != final and is_complete(place):
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
    marker = read_marker(folder)
    return marker is not None and marker.save == save


def _must_stay(final: Path, save: SaveId) -> bool:
    """Whether it is complete and goes only when the new one is, too.

    That all shards of this attempt are here says that the ranks share the volume. What was resumed from does not say
    it: every rank was given all shards of that.
    """
    marker = read_marker(final)
    if marker is None or marker.save == save or marker.save.attempt != save.attempt:
        return False
    return is_complete(final)


def _join(partial: Path, final: Path, rank: int) -> None:
    marker = partial / shard_name(rank)
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
    if CHECKPOINT.fullmatch(final.name) and is_whole(final):
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
        if is_whole(final):
            shutil.rmtree(old, ignore_errors=True)


def _all_replaced(checkpoint_dir: Path) -> list[tuple[Path, Path]]:
    """Each with the name that it had."""
    found = ((old, old.name[len(REPLACED) :]) for old in checkpoint_dir.glob(f"{REPLACED}*"))
    return [(old, old.with_name(name)) for old, name in found if CHECKPOINT.fullmatch(name)]


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


# One per rank, whatever the epoch: what a killed process has left is in the way of its next save, which removes it.
PARTIAL = ".holdfast-saving-"


class ShardWriter(NamedTuple):
    """The rank that writes, and of how many shards; None: it writes the whole checkpoint alone."""

    rank: int
    shards: int | None
    metrics: Mapping[str, float]


@contextlib.contextmanager
def saved(checkpoint_dir: Path, save: SaveId, writer: ShardWriter) -> Iterator[Path]:
    """A folder to write to, which is a checkpoint when the block ends well, and gone when it does not."""
    partial = checkpoint_dir / f"{PARTIAL}{writer.rank}"
    final = checkpoint_dir / f"checkpoint-epoch-{save.epoch}"
    try:
        with _explaining_os_errors(final):
            checkpoint_dir.mkdir(parents=True, exist_ok=True)
            _clear(partial)
            partial.mkdir()
        yield partial
        with _explaining_os_errors(final):
            _seal(partial, save, writer)
            _publish(partial, final, save, writer)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def discarded_folder() -> Iterator[Path]:
    """A folder for a block that may save and need not: nothing of it is kept."""
    import tempfile  # dear to import, and most scripts ask `due` first

    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        yield Path(folder)


def _seal(partial: Path, save: SaveId, writer: ShardWriter) -> None:
    """The marker, and everything down to the disk."""
    rank, shards, metrics = writer
    if shards is None:
        if not any(partial.iterdir()):
            raise CheckpointFailed(
                f"the checkpoint of epoch {save.epoch} is empty: save into the folder that checkpoint() gives"
            )
        write_marker(partial / WHOLE, save, shards=1, rank=rank, metrics=metrics)
    else:
        write_marker(partial / shard_name(rank), save, shards=shards, rank=rank, metrics=metrics)
    _sync_all(partial)


def _publish(partial: Path, final: Path, save: SaveId, writer: ShardWriter) -> None:
    if writer.shards is None:
        publish(partial, final)
    else:
        publish_shard(partial, final, save, writer.rank)


def _sync_all(folder: Path) -> None:
    def fail(error: OSError) -> None:
        raise error

    for parent, _, files in os.walk(folder, onerror=fail):
        for path in (Path(parent, name) for name in files):
            if path.is_file() and not path.is_symlink():
                sync_folder(path)
        sync_folder(Path(parent))


def _clear(partial: Path) -> None:
    if partial.is_symlink() or partial.is_file():
        partial.unlink()
    elif partial.exists():
        shutil.rmtree(partial)


@contextlib.contextmanager
def _explaining_os_errors(final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointFailed(f"can't save {final}: {error.strerror or error}{_advice(error)}") from error


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "; make the volume larger, or keep fewer checkpoints (checkpoint.retention)"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "; the user that the training runs as must be able to write there"
    return ""


# Which checkpoint a process goes on from, and where in the training that is.


def resume_folder(told: Environment) -> Path | None:
    """What RESUME_FROM leads to; it is a link that is there only if there is something to resume from.

    A launcher that has started its processes anew within the attempt has newer ones in CHECKPOINT_DIR. Shards of a save
    that was broken off may then have the name of what was resumed from, which is beside them.
    """
    if told.checkpoint_dir is not None:
        recover(told.checkpoint_dir)
    found = []
    if told.resume_from is not None and told.resume_from.exists():
        resumed = Path(os.path.realpath(told.resume_from))
        found.append(replaced(resumed) if _is_broken_off(resumed) else resumed)
    if told.restart and told.checkpoint_dir is not None and told.checkpoint_dir.is_dir():
        found.extend(_complete(told.checkpoint_dir))
    return max(found, key=resume_position, default=None)


def resume_position(folder: Path | None) -> tuple[int, int]:
    """The epochs that are done, and the steps of the one after them."""
    if folder is None:
        return 0, 0
    epoch, step = saved_position(folder)
    return (epoch, 0) if step is None else (max(epoch - 1, 0), step)


def _is_broken_off(folder: Path) -> bool:
    """What never had a marker counts as whole: RESUME_FROM says so."""
    has_marker = read_marker(folder) is not None
    return has_marker and not is_complete(folder) and is_whole(replaced(folder))


def _complete(checkpoint_dir: Path) -> Iterator[Path]:
    for folder in checkpoint_dir.iterdir():
        if CHECKPOINT.fullmatch(folder.name) and is_complete(folder):
            yield folder
