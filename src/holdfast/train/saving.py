"""Saves a checkpoint so that its name appears when all of it is on the disk, and at no moment before."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.train import markers, publishing
from holdfast.train.errors import CheckpointFailed
from holdfast.train.markers import SaveId

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
        markers.write_marker(partial / markers.WHOLE, save, shards=1, rank=rank, metrics=metrics)
    else:
        markers.write_marker(partial / markers.shard_name(rank), save, shards=shards, rank=rank, metrics=metrics)
    _sync_all(partial)


def _publish(partial: Path, final: Path, save: SaveId, writer: ShardWriter) -> None:
    if writer.shards is None:
        publishing.publish(partial, final)
    else:
        publishing.publish_shard(partial, final, save, writer.rank)


def _sync_all(folder: Path) -> None:
    def fail(error: OSError) -> None:
        raise error

    for parent, _, files in os.walk(folder, onerror=fail):
        for path in (Path(parent, name) for name in files):
            if path.is_file() and not path.is_symlink():
                publishing.sync_folder(path)
        publishing.sync_folder(Path(parent))


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
