"""Asking the training to save now, and telling when it has."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from holdfast.checkpoints.complete import FolderScan
from holdfast.checkpoints.content import FileEntry
from holdfast.checkpoints.names import CheckpointName
from holdfast.train.notice import announcement_file

# A save that takes longer is not waited for.
MOST_S = 60.0

Contents: TypeAlias = Mapping[CheckpointName, tuple[FileEntry, ...]]


def write_notice(file: Path, reason: str) -> None:
    """The file appears whole; one that is there already is replaced, which is a notice of its own."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    # Made anew: the training shares the folder, and what is in this place may be a link.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{' '.join(reason.split())}\n")
    os.replace(partial, file)  # noqa: PTH105  # replaces on every system, as it says


def trainer_saves_on_notice(file: Path) -> bool:
    """Whether the training has said that it answers notices: nobody waits for one that does not know them."""
    return announcement_file(file).exists()


def contents(looks: Iterable[FolderScan]) -> Contents:
    return {looked.name: looked.content for looked in looks}


def checkpoint_saved_since(before: Contents, looks: Iterable[FolderScan]) -> CheckpointName | None:
    """The checkpoint that was written since `before`, and is complete."""
    written = (looked for looked in looks if looked.complete and before.get(looked.name) != looked.content)
    return next((looked.name for looked in written), None)


def save_timeout_s(grace_s: float) -> float:
    """How long a save is waited for: the rest is for the training to end, and for what it saved to be kept."""
    return min(MOST_S, grace_s * 2 / 3)
