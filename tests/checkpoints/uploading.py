"""A process to be killed: it uploads a volume's checkpoints, or restores the newest, and says how far it is.

    python -m tests.checkpoints.uploading put|resume ADDRESS FOLDER

The store's settings are in its environment.
"""

import os
import sys
from pathlib import Path

from holdfast.checkpoints.resume import resume
from holdfast.checkpoints.settings import open_store
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.making import ABOUT


def main() -> None:
    what, address, folder = sys.argv[1:]
    store = open_store(address, os.environ)
    _say("begun")
    if what == "put":
        for name in reversed(VolumeStore(Path(folder)).names(until=0)):
            store.put(name, Path(folder) / name.folder, ABOUT)
            _say(str(name.epoch))
    else:
        got = resume(store, Path(folder) / "attempt-1", 1, ABOUT, _say)
        _say(str(got.epoch if got else 0))


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
