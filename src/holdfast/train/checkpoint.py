"""Saves checkpoints atomically: the name of a checkpoint appears only when all of its content is on the disk."""

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

# The marker of a checkpoint: it is written last, and declares the shards of the checkpoint.
#
# One rank saves: `.holdfast-complete`. Each rank saves its shard: `.holdfast-complete-{rank}`, and the checkpoint is
# complete when there are as many markers as each marker declares, all of one save.
#
# A copy of a checkpoint has no marker. Its manifest, which the sidecar writes, holds the position instead.

WHOLE = ".holdfast-complete"
CHECKPOINT = re.compile(r"checkpoint-epoch-([0-9]{1,15})", re.ASCII)
SHARD = re.compile(re.escape(WHOLE) + r"-([0-9]{1,9})", re.ASCII)
MAX_MARKER_BYTES = 65536
MANIFEST = ".holdfast-manifest.json"
MAX_MANIFEST_BYTES = 4 << 20


class SaveId(NamedTuple):
    """Identifies one save. All ranks of a save have the same id; two saves of one attempt have different ids."""

    attempt: int
    restart: int
    epoch: int
    step: int | None
    """The completed steps of the epoch; None when the whole epoch is complete."""


class Marker(NamedTuple):
    save: SaveId
    shards: int


def shard_name(rank: int) -> str:
    return f"{WHOLE}-{rank}"


def write_marker(
    file: Path, save: SaveId, *, shards: int, rank: int, metrics: Mapping[str, float] | None = None
) -> None:
    fields = {"shards": shards, "ranks": [rank], **save._asdict(), "metrics": dict(metrics or {})}
    file.write_text(json.dumps(fields) + "\n", encoding="utf-8")


def read_marker(folder: Path) -> Marker | None:
    """Any marker of the folder; None where no marker can be read."""
    return next(_markers(folder), None)


def is_complete(folder: Path) -> bool:
    found = set(_markers(folder))
    if len(found) != 1:  # shards of two saves make no checkpoint
        return False
    ranks = [SHARD.fullmatch(file.name) for file in folder.glob(f"{WHOLE}-*")]
    present = {int(match[1]) for match in ranks if match}
    return (folder / WHOLE).is_file() or present >= set(range(found.pop().shards))


def is_whole(folder: Path) -> bool:
    """Like `is_complete`, but also true for a copy, which has a manifest instead of markers."""
    if read_marker(folder) is None:
        return (folder / MANIFEST).is_file()
    return is_complete(folder)


def saved_position(folder: Path) -> tuple[int, int | None]:
    """The epoch, and its completed steps (None: all). Without marker and manifest the epoch comes from the name."""
    marker = read_marker(folder)
    if marker is not None:
        return marker.save.epoch, marker.save.step
    match = CHECKPOINT.fullmatch(folder.name)
    return _position_in_manifest(folder / MANIFEST) or ((int(match[1]) if match else 0), None)


def _position_in_manifest(file: Path) -> tuple[int, int | None] | None:
    try:
        with file.open("rb") as stream:
            fields = json.loads(stream.read(MAX_MANIFEST_BYTES + 1))
        epoch, step = fields["epoch"], fields.get("step")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_position = all(type(number) is int and number >= 0 for number in (epoch, 0 if step is None else step))
    return (epoch, step) if is_position else None


def _markers(folder: Path) -> Iterator[Marker]:
    for file in sorted(folder.glob(f"{WHOLE}*")):
        marker = _parse_marker(file)
        if marker is not None:
            yield marker


def _parse_marker(file: Path) -> Marker | None:
    try:
        with file.open("rb") as stream:
            fields = json.loads(stream.read(MAX_MARKER_BYTES))
        save = SaveId(*(fields[name] for name in SaveId._fields))
        shards = fields["shards"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers = [shards, save.attempt, save.restart, save.epoch, 0 if save.step is None else save.step]
    return Marker(save, shards) if all(type(number) is int and number >= 0 for number in numbers) else None


# Publishes a complete folder under the name of a checkpoint.
#
# A checkpoint that has the name already (saved within the epoch, or resumed from) is replaced, and the shards of
# several ranks are joined. Whenever the process is killed, the checkpoint under the name is complete, or its markers
# show that it is not. In the second case the previous complete checkpoint is beside it, until the new one is complete.

LOCK = ".holdfast-lock"
REPLACED = ".holdfast-replaced-"
DROPPED = ".holdfast-dropped"
JOINING = ".holdfast-joining"
# Volumes that don't support fsync, at least for folders, such as some mounted buckets.
CANT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
# From the headers of the Linux kernel.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def publish(partial: Path, final: Path) -> None:
    if not _rename_if_free(partial, final):
        _replace(partial, final)
    _remove_replaced(final.parent)


def publish_shard(partial: Path, final: Path, save: SaveId, rank: int) -> None:
    """The first rank's folder gets the name, with a marker that declares the number of shards; other ranks join it.

    On a volume that ranks do not share, the folder holds one shard only, and its marker shows that others are missing.
    """
    with _locked(final.parent):
        target = final.with_name(JOINING) if _must_outlast_save(final, save) else final
        if _rename_if_free(partial, target):
            pass
        elif not _is_same_save(target, save):
            _replace_in_two_steps(partial, target)
        elif not (target / shard_name(rank)).exists():
            _join_shard(partial, target, rank)
        if target != final and is_complete(target):
            _replace(target, final)
            shutil.rmtree(target, ignore_errors=True)
        _remove_replaced(final.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANT_SYNC:
            raise
    finally:
        os.close(descriptor)


def _rename_if_free(partial: Path, final: Path) -> bool:
    try:
        partial.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _is_same_save(folder: Path, save: SaveId) -> bool:
    marker = read_marker(folder)
    return marker is not None and marker.save == save


def _must_outlast_save(final: Path, save: SaveId) -> bool:
    """Whether the old checkpoint is complete, and must be replaced only when the new one is complete, too.

    If all shards of a save of this attempt are present, the ranks share the volume. The checkpoint that was resumed
    from proves nothing: every rank received all of its shards.
    """
    marker = read_marker(final)
    if marker is None or marker.save == save or marker.save.attempt != save.attempt:
        return False
    return is_complete(final)


def _join_shard(partial: Path, final: Path, rank: int) -> None:
    marker = partial / shard_name(rank)
    _move_into(final, partial, except_for=marker)
    marker.rename(final / marker.name)
    sync_folder(final)


def _move_into(target: Path, source: Path, except_for: Path) -> None:
    for path in sorted(source.iterdir()):
        moved = target / path.name
        if path == except_for:
            continue
        if path.is_dir() and moved.is_dir() and not path.is_symlink() and not moved.is_symlink():
            _move_into(moved, path, except_for)
        elif os.path.lexists(moved):
            raise CheckpointFailed(f"two ranks have saved {moved}: give each rank's files names of their own")
        else:
            path.rename(moved)
    sync_folder(target)


def replaced(final: Path) -> Path:
    """The path of a replaced checkpoint until its replacement is complete."""
    return final.with_name(f"{REPLACED}{final.name}")


def recover(checkpoint_dir: Path) -> None:
    """Give old checkpoints their names again after a process was killed between the two steps of a replacement."""
    for old, final in _all_replaced(checkpoint_dir):
        if not final.exists():
            with contextlib.suppress(OSError):  # another process has renamed it
                old.rename(final)


def _replace(partial: Path, final: Path) -> None:
    """Replace the folder that has the name: in one step where the volume supports it; NFS, for example, needs two."""
    if not exchange(partial, final):
        _replace_in_two_steps(partial, final)


def _replace_in_two_steps(partial: Path, final: Path) -> None:
    _move_aside(final)
    try:
        partial.rename(final)
    except OSError:
        with contextlib.suppress(OSError):
            replaced(final).rename(final)
        raise


def _move_aside(final: Path) -> None:
    """Move a complete checkpoint beside its name; delete the shards of an interrupted save."""
    if CHECKPOINT.fullmatch(final.name) and is_whole(final):
        shutil.rmtree(replaced(final), ignore_errors=True)
        final.rename(replaced(final))
    else:
        dropped = final.with_name(DROPPED)
        shutil.rmtree(dropped, ignore_errors=True)
        final.rename(dropped)
        shutil.rmtree(dropped, ignore_errors=True)


def _remove_replaced(checkpoint_dir: Path) -> None:
    """Remove replaced checkpoints, after the new name is on the disk."""
    sync_folder(checkpoint_dir)
    for old, final in _all_replaced(checkpoint_dir):
        if is_whole(final):
            shutil.rmtree(old, ignore_errors=True)


def _all_replaced(checkpoint_dir: Path) -> list[tuple[Path, Path]]:
    """Each replaced checkpoint with its original path."""
    found = ((old, old.name[len(REPLACED) :]) for old in checkpoint_dir.glob(f"{REPLACED}*"))
    return [(old, old.with_name(name)) for old, name in found if CHECKPOINT.fullmatch(name)]


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders; false where that is not possible."""
    try:
        import ctypes

        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, TypeError, AttributeError):
        return False
    done: int = renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return done == 0


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One rank at a time. The lock ends with its process, and applies to all nodes that mount the volume."""
    import fcntl  # not available on every system that runs a script

    with (folder / LOCK).open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        yield


# One folder per rank for all epochs: the next save of the rank removes what a killed process has left.
PARTIAL = ".holdfast-saving-"


class ShardWriter(NamedTuple):
    """The rank that writes, and the number of shards; None: the rank writes the whole checkpoint alone."""

    rank: int
    shards: int | None
    metrics: Mapping[str, float]


@contextlib.contextmanager
def saved(checkpoint_dir: Path, save: SaveId, writer: ShardWriter) -> Iterator[Path]:
    """A folder to write to. It becomes a checkpoint when the block succeeds, and is deleted when the block fails."""
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
    """A temporary folder for a block whose checkpoint is not needed: its content is deleted."""
    import tempfile  # expensive to import, and most scripts call `due` first

    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        yield Path(folder)


def _seal(partial: Path, save: SaveId, writer: ShardWriter) -> None:
    """Write the marker, and sync everything to the disk."""
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


# The checkpoint that a process resumes from, and its position in the training.


def resume_folder(env: Environment) -> Path | None:
    """The target of RESUME_FROM, a link that exists only if there is a checkpoint to resume from.

    When a launcher has restarted its processes within the attempt, CHECKPOINT_DIR has newer checkpoints. Shards of an
    interrupted save may then have the name of the checkpoint that was resumed from, which is beside them.
    """
    if env.checkpoint_dir is not None:
        recover(env.checkpoint_dir)
    found = []
    if env.resume_from is not None and env.resume_from.exists():
        resumed = Path(os.path.realpath(env.resume_from))
        found.append(replaced(resumed) if _is_interrupted_save(resumed) else resumed)
    if env.restart and env.checkpoint_dir is not None and env.checkpoint_dir.is_dir():
        found.extend(_complete_checkpoints(env.checkpoint_dir))
    return max(found, key=resume_position, default=None)


def resume_position(folder: Path | None) -> tuple[int, int]:
    """The completed epochs, and the completed steps of the epoch after them."""
    if folder is None:
        return 0, 0
    epoch, step = saved_position(folder)
    return (epoch, 0) if step is None else (max(epoch - 1, 0), step)


def _is_interrupted_save(folder: Path) -> bool:
    """A folder that never had a marker counts as complete, since RESUME_FROM refers to it."""
    has_marker = read_marker(folder) is not None
    return has_marker and not is_complete(folder) and is_whole(replaced(folder))


def _complete_checkpoints(checkpoint_dir: Path) -> Iterator[Path]:
    for folder in checkpoint_dir.iterdir():
        if CHECKPOINT.fullmatch(folder.name) and is_complete(folder):
            yield folder
