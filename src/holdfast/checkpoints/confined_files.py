"""Files and folders on a volume that the training may change at any moment.

A path that was checked may lead elsewhere when it is used: the training can replace any folder on the way by a link to
the sidecar's credentials. So a folder is opened one component at a time, without following links, and everything in it
is reached relative to that descriptor.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Such a descriptor names a file or a folder without opening it: a pipe is not waited at.
NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# As many as Linux follows.
MAX_LINKS = 40


class LeavesFolder(OSError):
    """A link leads out of the folder that it is in."""


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
                raise _explained(error, above, part, Path(folder.anchor, *parts[:number])) from None
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
    """Where the content of a file in a folder is read, whatever its path leads to meanwhile."""
    with opened(folder) as above, found(above, path, folder) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is not a file", path)
        yield reopened(descriptor)


def reopened(descriptor: int) -> Path:
    """A path that leads to what the descriptor names, and to nothing else, while it is open."""
    return Path(f"/proc/self/fd/{descriptor}")


def _inside(target: str, where: Path, path: str) -> str:
    """An absolute link to a place in the folder, seen from the folder."""
    if target != str(where) and not target.startswith(f"{where}/"):
        raise LeavesFolder(errno.EXDEV, "a link leads out of the folder", path)
    return target[len(str(where)) :]


def _explained(error: OSError, above: int, part: str, place: Path) -> OSError:
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode):
            return NotADirectoryError(errno.ENOTDIR, "a link is in the place of a folder", str(place))
    return type(error)(error.errno, error.strerror, str(place))
