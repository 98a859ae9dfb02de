"""Checkpoints as a training leaves them on its volume."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from holdfast.checkpoints.manifest import CheckpointName, SaveInfo

MODEL = {"model.bin": b"weights", "state/position.json": b"{}", "empty": b""}
ABOUT = SaveInfo(job="uid-1", saved_at="2026-01-02T03:04:05Z", world=1)
Oddity: TypeAlias = Callable[[Path], object]


def link(backend: Path) -> None:
    backend.symlink_to("/etc/hostname")


def sock(backend: Path) -> None:
    os.mknod(backend, stat.S_IFSOCK | 0o600)


# What may be in a place where holdfast reads or writes a file of its own.
ODD: tuple[Oddity, ...] = (os.mkfifo, Path.mkdir, link, sock)


def save(root: Path, name: CheckpointName, files: Mapping[str, bytes] = MODEL) -> Path:
    """A plain save: a folder of that name with these files."""
    folder = root / name.folder
    fill(folder, files)
    return folder


def save_by_rename(root: Path, name: CheckpointName, files: Mapping[str, bytes] = MODEL) -> Path:
    """As careful programs do it: under another name, and renamed when all is there."""
    target = root / name.folder
    partial = target.with_name(f".{target.name}.partial")
    fill(partial, files)
    await_tick(partial)
    partial.rename(target)
    return target


def fill(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of the training below a folder; what begins with .holdfast- is holdfast's."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in files if not path.name.startswith(".holdfast-")
    }


def await_tick(folder: Path) -> None:
    """Return when the file system's clock, which may be coarse, is past the newest change in the folder."""
    newest = max(path.stat().st_ctime_ns for path in (folder, *folder.rglob("*")))
    probe = folder.parent / ".clock"
    while True:
        probe.touch()
        if probe.stat().st_ctime_ns > newest:
            break
    probe.unlink()
