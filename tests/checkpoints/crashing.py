"""Death at any operation: of the process, whose writes stay, or of the machine, which forgets some of them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.checkpoints import files
from holdfast.checkpoints.completeness import was_renamed
from holdfast.checkpoints.files import list_files
from tests.checkpoints.making import await_tick
from tests.checkpoints.memory import Died, MemoryBucket


class Fuse:
    """Counts operations, and ends the process at one of them; None never burns down."""

    def __init__(self, left: int | None, random: Random) -> None:
        self.left = left
        self.random = random
        self.dead = False

    def burns(self) -> bool:
        """Whether this is the last operation. The dead do nothing more."""
        if self.dead:
            raise Died
        if self.left is not None:
            self.left -= 1
            self.dead = self.left < 0
        return self.dead

    def before(self) -> None:
        if self.burns():
            raise Died

    def change(self, carry_out: Callable[[], None]) -> None:
        """A request whose sender dies may have arrived, or not."""
        dying = self.burns()
        if not dying or self.random.random() < 0.5:
            carry_out()
        if dying:
            raise Died


class DyingOs:
    """Stands for `os` in holdfast.checkpoints.files, and knows what a machine would forget when its power is cut."""

    def __init__(self) -> None:
        self.fuse = Fuse(None, Random(0))
        self._unsynced: set[int] = set()  # by inode
        self._undo: list[tuple[str, Callable[[], None]]] = []  # changes of folders, with the folder that must be synced

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        backend = _place(path, dir_fd)
        creating = flags & os.O_CREAT and not os.path.lexists(backend)
        if flags & os.O_CREAT:
            self.fuse.before()
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        if creating:
            self._undo.append((str(backend.parent), lambda: backend.unlink(missing_ok=True)))
        if flags & os.O_TRUNC:
            self._unsynced.add(os.fstat(descriptor).st_ino)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.fuse.burns():
            os.write(descriptor, data[: self.fuse.random.randint(0, len(data))])
            raise Died
        self._unsynced.add(os.fstat(descriptor).st_ino)
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Nothing is really forced to the disk; it is only noted that it would have been."""
        self.fuse.before()
        self._unsynced.discard(os.fstat(descriptor).st_ino)
        path = str(_place("", descriptor))
        self._undo = [(folder, undo) for folder, undo in self._undo if folder != path]

    def mkdir(self, path: str, *, dir_fd: int) -> None:
        self.fuse.before()
        os.mkdir(path, dir_fd=dir_fd)

    def rename(self, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self.fuse.before()
        source, target = _place(old, src_dir_fd), _place(new, dst_dir_fd)
        os.rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._undo.append((str(target.parent), lambda: _rename_back(source, target)))

    def replace(self, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self.fuse.before()
        source, target = _place(old, src_dir_fd), _place(new, dst_dir_fd)
        before = target.read_bytes() if target.exists() else None
        renamed = was_renamed(target.parent, list_files(target.parent))
        os.replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if before is None:
            self._undo.append((str(target.parent), lambda: _take_back(source, target, renamed)))
        else:
            self._undo.append((str(target.parent), lambda: _write_back(target, before)))

    def unlink(self, path: str, *, dir_fd: int) -> None:
        self.fuse.before()
        os.unlink(path, dir_fd=dir_fd)

    def rmdir(self, path: str, *, dir_fd: int) -> None:
        self.fuse.before()
        os.rmdir(path, dir_fd=dir_fd)

    def never_synced(self, folder: Path) -> None:
        """A training program that does not sync has written these."""
        self._unsynced |= {path.stat().st_ino for path in folder.rglob("*") if path.is_file()}

    def cut_power(self, root: Path, random: Random) -> None:
        """Forget the ends of files, and the last changes of folders, that were not synced."""
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_ino in self._unsynced:
                os.truncate(path, random.randint(0, path.stat().st_size))
        for _, undo in self._undo[random.randint(0, len(self._undo)) :][::-1]:
            undo()
        self.lives_on()

    def lives_on(self) -> None:
        """A process that only dies leaves its writes to the machine."""
        self._unsynced.clear()
        self._undo.clear()


def _place(path: str | Path, folder: int | None) -> Path:
    return Path(path) if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / path


def _rename_back(source: Path, target: Path) -> None:
    if os.path.lexists(target) and not os.path.lexists(source) and source.parent.is_dir():
        target.rename(source)


def _write_back(target: Path, old: bytes) -> None:
    if target.parent.is_dir():
        target.write_bytes(old)


def _take_back(source: Path, target: Path, renamed: bool) -> None:
    """A file's rename into a folder. A machine that forgets it forgets, too, that the folder was modified by it."""
    folder = target.parent
    _rename_back(source, target)
    if renamed and folder.is_dir():
        await_tick(folder)
        folder.rename(folder.with_name("for a moment")).rename(folder)


@contextmanager
def dying_os() -> Iterator[DyingOs]:
    with pytest.MonkeyPatch.context() as patch:
        dying = DyingOs()
        patch.setattr(files, "os", dying)
        yield dying


def dies(fuse: Fuse, dying: DyingOs, bucket: MemoryBucket | None, work: Callable[[], Any]) -> bool:
    """Whether the process died in the middle of its work; afterwards another one may begin."""
    dying.fuse = fuse
    if bucket is not None:
        bucket.before, bucket.change = fuse.before, fuse.change
    try:
        work()
    except Died:
        return True
    finally:
        dying.fuse = Fuse(None, Random(0))
        if bucket is not None:
            bucket.before, bucket.change = dying.fuse.before, dying.fuse.change
    return False
