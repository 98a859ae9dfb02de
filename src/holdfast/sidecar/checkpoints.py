"""Which checkpoint a training goes on from: every attempt has a folder of its own, and the newest of all counts."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.train import markers

ATTEMPT = re.compile(r"attempt-([0-9]{1,9})")
# The whole name: what is still being written has another one (a dot before it, .tmp or .partial after it).
CHECKPOINT = re.compile(r"checkpoint-epoch-([0-9]{1,18})")


class Checkpoint(NamedTuple):
    """The order of the fields is the order of checkpoints: of two with one epoch, the later attempt's is newer."""

    epoch: int
    attempt: int
    folder: Path

    def __str__(self) -> str:
        return f"{self.folder.name} of attempt {self.attempt}"


def attempt_of(folder: Path) -> int | None:
    match = ATTEMPT.fullmatch(folder.name)
    return int(match[1]) if match else None


def attempts(root: Path, until: int) -> Iterator[tuple[int, Path]]:
    """The folders of the attempts up to and including `until`."""
    for path in root.iterdir():
        number = attempt_of(path)
        if number is not None and number <= until and path.is_dir():
            yield number, path


def newest_first(root: Path, until: int) -> list[Checkpoint]:
    """Every checkpoint that may be whole: a folder of the right name, with something and all declared shards in it."""
    found = []
    for attempt, folder in attempts(root, until):
        for path in folder.iterdir():
            match = CHECKPOINT.fullmatch(path.name)
            if match and path.is_dir() and any(path.iterdir()) and not lacks_shards(path):
                found.append(Checkpoint(int(match[1]), attempt, path))
    return sorted(found, reverse=True)


def lacks_shards(folder: Path) -> bool:
    """Whether the training says in the checkpoint itself that more belongs to it."""
    return any(folder.glob(f"{markers.WHOLE}*")) and not markers.is_complete(folder)


def escaping(folder: Path, root: Path) -> Path | None:
    """The first link in or at the folder that leads out of the root or nowhere, if there is one."""
    if not _is_below(folder, root):
        return folder
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not is_inner(path, folder) and not (path.is_file() and _is_below(path, root)):
                return path
    return None


def is_inner(link: Path, folder: Path) -> bool:
    """Whether a copy of the whole folder can keep the link as it is, since it leads to a place in there."""
    target = Path(os.path.normpath(link.parent.relative_to(folder) / link.readlink()))
    return not target.is_absolute() and target.parts[:1] != (os.pardir,)


def _is_below(path: Path, root: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
