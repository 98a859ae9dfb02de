"""Taking away what a pod has left on the disk."""

import asyncio
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import structlog

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# What is kept of a pod that has ended, until its object is deleted.
KEPT = ("logs",)


async def remove(folder: Path) -> None:
    """The whole folder; what can't be removed is logged and left."""
    await asyncio.to_thread(_remove, folder)


async def remove_all_but_logs(folder: Path) -> None:
    """All but the logs."""
    await asyncio.to_thread(_prune, folder)


def _prune(folder: Path) -> None:
    for entry in folder.iterdir() if folder.exists() else ():
        if entry.name not in KEPT:
            _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_open_and_retry)
    else:
        path.unlink(missing_ok=True)


def _open_and_retry(action: Callable[..., object], name: str, _: object) -> None:
    """A training may leave folders that even their owner can't write into."""
    path = Path(name)
    try:
        for folder in (path.parent, path):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
        if path.is_dir() and not path.is_symlink() and action is not os.unlink:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("not removed", path=name, reason=str(error))
