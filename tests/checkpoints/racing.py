"""A training that attacks its sidecar: it replaces a folder by a link the moment the sidecar touches the folder.

It is a process of its own, which the kernel tells of every touch (inotify).
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CREATED, DELETED, LISTED = 0x100, 0x200, 0x20


@contextlib.contextmanager
def attack(folder: Path, victim: Path, event: int) -> Iterator[None]:
    """`folder` becomes a link to `victim` at the first such event in it; fails unless that has happened by the end."""
    command = [sys.executable, "-S", __file__, str(folder), str(victim), str(event)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
            assert process.stdout.readline() == "replaced\n", "the sidecar has not touched the folder"
        finally:
            process.kill()


def main(folder: str, victim: str, event: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC)
    assert libc.inotify_add_watch(descriptor, folder.encode(), event) >= 0, os.strerror(ctypes.get_errno())
    print("ready", flush=True)  # noqa: T201
    os.read(descriptor, 4096)
    os.rename(folder, f"{folder}.aside")  # noqa: PTH104  # as quick as can be
    os.symlink(victim, folder)  # noqa: PTH211
    print("replaced", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
