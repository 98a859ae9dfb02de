"""The log files of a pod's containers, as `kubectl logs` shows them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.2
CHUNK = 1 << 16


def log_file(folder: Path, container: str, restart: int) -> Path:
    """The log file of one start of a container; after a rotation, the older half is in `.1`."""
    return folder / container / f"{restart}.log"


def newest(folder: Path, container: str) -> Path | None:
    """The log file of the last start of the container."""
    files = (folder / container).glob("*.log")
    return max(files, key=lambda path: int(path.stem), default=None)


def forget_old(folder: Path, container: str, restart: int) -> None:
    """Remove all logs except those of this start and of the previous start."""
    for path in (folder / container).glob("*.log*"):
        if int(path.name.partition(".")[0]) < restart - 1:
            path.unlink()


def read_log(path: Path | None, *, tail_lines: int | None = None, limit_bytes: int | None = None) -> bytes:
    """The stored output: the last `tail_lines` lines, and of these the first `limit_bytes` bytes."""
    if path is None:
        return b""
    data = _content(path.with_name(f"{path.name}.1")) + _content(path)
    if tail_lines is not None:
        data = tail_log(data, tail_lines)
    return data if limit_bytes is None else data[:limit_bytes]


def tail_log(data: bytes, lines: int) -> bytes:
    if lines <= 0:
        return b""
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return data
    return data[position + 1 :]


async def follow_log(path: Path, ended: Callable[[], bool], *, tail_lines: int | None = None) -> AsyncIterator[bytes]:
    """The log and everything that is appended, across rotations, until `ended` and no output is left."""
    before, file = _content(path.with_name(f"{path.name}.1")), _open(path)
    try:
        content = before + (file.read() if file else b"")
        yield content if tail_lines is None else tail_log(content, tail_lines)
        while True:
            last_pass = ended()
            while chunk := file.read(CHUNK) if file else b"":
                yield chunk
            newer = _open(path)
            if newer is not None and (file is None or not _same(file, newer)):
                _close(file)
                file = newer
                continue
            _close(newer)
            if last_pass:
                return
            await asyncio.sleep(POLL_S)
    finally:
        _close(file)


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _close(file: BinaryIO | None) -> None:
    if file is not None:
        file.close()


def _same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


# The termination message of a container, which goes into the status of the pod.

MESSAGE_BYTES = 4096
# Limits of the log fallback when there is no message, as in a kubelet.
LOG_BYTES = 2048
LOG_LINES = 80
# Bytes at the end of a log that are searched for its last lines.
WINDOW = 1 << 16


def termination_message(message_file: Path, log: Path, policy: str, exit_code: int) -> str:
    message = _end(message_file, MESSAGE_BYTES, from_start=True)
    if not message and policy == "FallbackToLogsOnError" and exit_code != 0:
        message = tail_log(_end(log, WINDOW), LOG_LINES)[-LOG_BYTES:]
    return message.decode(errors="replace")


def _end(path: Path, size: int, *, from_start: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if not from_start:
                file.seek(max(path.stat().st_size - size, 0))
            return file.read(size)
    except OSError:
        return b""
