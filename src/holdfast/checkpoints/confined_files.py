"""Safe access to files and folders on a volume that the training may change at any moment.

A path that was checked may lead elsewhere when it is used: the training can replace any folder on the way by a link to
the sidecar's credentials. So a folder is opened one component at a time, without following links, and its content is
reached relative to that descriptor.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Such a descriptor names a file or a folder without opening it: a pipe does not block.
NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# The limit of Linux.
MAX_LINKS = 40


class LeavesFolder(OSError):
    """A link leads out of its folder."""


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of a folder. No component of its path may be a link."""
    parts = folder.parts[1:] if folder.anchor else folder.parts
    descriptor = os.open(folder.anchor or ".", NAMED | os.O_DIRECTORY if parts else FOLDER)
    try:
        for number, part in enumerate(parts, start=1):
            above, flags = descriptor, FOLDER if number == len(parts) else NAMED | os.O_DIRECTORY
            try:
                descriptor = os.open(part, flags, dir_fd=above)
            except OSError as error:
                raise _with_path(error, above, part, Path(folder.anchor, *parts[:number])) from None
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def found(folder: int, path: str, where: Path) -> Iterator[int]:
    """A descriptor of what a path in a folder leads to, for `os.fstat` and `reopened`.

    Links are followed as long as they stay in the folder, which is at `where`; else this raises LeavesFolder.
    """
    stack, rest, links = [os.dup(folder)], path.split("/")[::-1], 0
    try:
        while rest:
            part = rest.pop()
            if part == "..":
                if len(stack) == 1:
                    raise LeavesFolder(errno.EXDEV, "a link leads out of the folder", path)
                os.close(stack.pop())
            elif part not in ("", "."):
                stack.append(os.open(part, NAMED, dir_fd=stack[-1]))
                if not stat.S_ISLNK(os.fstat(stack[-1]).st_mode):
                    continue
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, "too many links", path)
                target = os.readlink("", dir_fd=stack[-1])
                os.close(stack.pop())
                if target.startswith("/"):
                    target = _inside(target, where, path)
                    while len(stack) > 1:
                        os.close(stack.pop())
                rest += target.split("/")[::-1]
        yield stack[-1]
    finally:
        for descriptor in stack:
            os.close(descriptor)


@contextlib.contextmanager
def regular(folder: Path, path: str) -> Iterator[Path]:
    """A path to read a file in a folder, whatever the file's own path leads to meanwhile."""
    with opened(folder) as above, found(above, path, folder) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is not a file", path)
        yield reopened(descriptor)


def reopened(descriptor: int) -> Path:
    """A path that leads to the file of the descriptor, and to nothing else, while the descriptor is open."""
    return Path(f"/proc/self/fd/{descriptor}")


def _inside(target: str, where: Path, path: str) -> str:
    """The target of an absolute link, relative to the folder; raises LeavesFolder for a target outside."""
    if target != str(where) and not target.startswith(f"{where}/"):
        raise LeavesFolder(errno.EXDEV, "a link leads out of the folder", path)
    return target[len(str(where)) :]


def _with_path(error: OSError, above: int, part: str, path: Path) -> OSError:
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode):
            return NotADirectoryError(errno.ENOTDIR, "a link is in the place of a folder", str(path))
    return type(error)(error.errno, error.strerror, str(path))
