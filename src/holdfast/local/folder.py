"""The data folder: one `up` at a time uses it."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import HoldfastError

LOCK = "lock"


class InUse(HoldfastError):
    """Another process works in the data folder."""


class DataDirUnusable(HoldfastError):
    """The data folder can't be used."""


def default_folder(environment: Mapping[str, str]) -> Path:
    """$HOLDFAST_DATA, else where programs of this user keep their data."""
    if chosen := environment.get("HOLDFAST_DATA"):
        return Path(chosen)
    home = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "holdfast"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Use the folder inside the block; the kernel lets go of it when the process ends, in whatever way."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirUnusable(
            f"cannot use the data folder {folder}: {error.strerror}; choose another with --data"
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise InUse(
                f"holdfast is up already in {folder} (process {owner or 'unknown'}): use it, stop it, "
                "or choose another folder with --data"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
