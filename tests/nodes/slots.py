"""Which lab on this host is which: each has a number, from which its names and addresses come.

The number is held by a lock that goes with the process. What a killed process left behind is written beside the lock,
and whoever comes next clears it away.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.control_plane.build import cache_folder
from tests.nodes import cgroups
from tests.nodes.network import Addresses, is_in_use, remove_link

MOST = 16
ROUTES = Path("/proc/net/route")


class Slot:
    """A lab's number, and the notes of what it leaves when it is killed."""

    def __init__(self, number: int, file: IO[str]) -> None:
        self.number = number
        self._file = file

    def note(self, *, folder: Path, groups: list[Path], link: str) -> None:
        self._write({"folder": str(folder), "groups": [str(one) for one in groups], "link": link})

    def clear(self) -> None:
        """Remove what is noted: control groups with all that runs in them, the link to this host, and the folder."""
        self._file.seek(0)
        if noted := self._file.read():
            left = json.loads(noted)
            cgroups.remove([Path(one) for one in left["groups"]])
            remove_link(left["link"])
            shutil.rmtree(left["folder"], ignore_errors=True)
        self._write(None)

    def _write(self, content: dict[str, object] | None) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(content) if content else "")
        self._file.flush()


@contextmanager
def taken(folder: Path | None = None) -> Iterator[Slot]:
    """A number of this process's own, after everything that dead ones left has been cleared away."""
    locks = folder or cache_folder() / "node" / "labs"
    locks.mkdir(parents=True, exist_ok=True)
    clear_all(locks)
    for number in range(MOST):
        with (locks / str(number)).open("a+") as file:
            if _locked(file):
                slot = Slot(number, file)
                slot.clear()
                if not is_in_use(Addresses(number).everyone, ROUTES.read_text()):
                    yield slot
                    return
    raise RuntimeError(f"there is no room for another lab on this host: {MOST} run, or their networks are in use")


def clear_all(locks: Path) -> None:
    for path in sorted(locks.iterdir()):
        with path.open("a+") as file:
            if _locked(file):
                Slot(int(path.name), file).clear()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
