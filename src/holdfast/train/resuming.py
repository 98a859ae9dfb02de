"""Which checkpoint a process goes on from, and where in the training that is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.train import markers, publishing
from holdfast.train.environment import Environment


def resume_folder(told: Environment) -> Path | None:
    """What RESUME_FROM leads to; it is a link that is there only if there is something to resume from.

    A launcher that has started its processes anew within the attempt has newer ones in CHECKPOINT_DIR. Shards of a save
    that was broken off may then have the name of what was resumed from, which is beside them.
    """
    if told.checkpoint_dir is not None:
        publishing.recover(told.checkpoint_dir)
    found = []
    if told.resume_from is not None and told.resume_from.exists():
        resumed = Path(os.path.realpath(told.resume_from))
        found.append(publishing.replaced(resumed) if _is_broken_off(resumed) else resumed)
    if told.restart and told.checkpoint_dir is not None and told.checkpoint_dir.is_dir():
        found.extend(_complete(told.checkpoint_dir))
    return max(found, key=resume_position, default=None)


def resume_position(folder: Path | None) -> tuple[int, int]:
    """The epochs that are done, and the steps of the one after them."""
    if folder is None:
        return 0, 0
    epoch, step = markers.saved_position(folder)
    return (epoch, 0) if step is None else (max(epoch - 1, 0), step)


def _is_broken_off(folder: Path) -> bool:
    """What never had a marker counts as whole: RESUME_FROM says so."""
    has_marker = markers.read_marker(folder) is not None
    return has_marker and not markers.is_complete(folder) and markers.is_whole(publishing.replaced(folder))


def _complete(checkpoint_dir: Path) -> Iterator[Path]:
    for folder in checkpoint_dir.iterdir():
        if markers.CHECKPOINT.fullmatch(folder.name) and markers.is_complete(folder):
            yield folder
