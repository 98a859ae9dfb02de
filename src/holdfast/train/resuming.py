"""Which checkpoint a process goes on from, and where in the training that is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.train import markers
from holdfast.train.environment import Environment


def newest(told: Environment) -> Path | None:
    """What RESUME_FROM leads to; it is a link that is there only if there is something to resume from.

    A launcher that has started its processes anew within the attempt has newer ones in CHECKPOINT_DIR.
    """
    found = []
    if told.resume_from is not None and told.resume_from.exists():
        found.append(Path(os.path.realpath(told.resume_from)))
    if told.restart and told.checkpoint_dir is not None and told.checkpoint_dir.is_dir():
        found.extend(_complete(told.checkpoint_dir))
    return max(found, key=position, default=None)


def position(folder: Path | None) -> tuple[int, int]:
    """The epochs that are done, and the steps of the one after them."""
    if folder is None:
        return 0, 0
    epoch, step = markers.position(folder)
    return (epoch, 0) if step is None else (max(epoch - 1, 0), step)


def _complete(checkpoint_dir: Path) -> Iterator[Path]:
    for folder in checkpoint_dir.iterdir():
        if markers.CHECKPOINT.fullmatch(folder.name) and markers.is_complete(folder):
            yield folder
