"""Reads what is appended to a file, line by line: also when it is truncated, replaced, or not there yet."""

import os
import stat
from pathlib import Path

READ_BYTES = 256 << 10
LINE_BYTES = 64 << 10


class Tail:
    """Of a file that another process writes. `too_long` counts lines that no report could hold."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None
        self._offset = 0
        self._rest = b""
        self._is_skipping = False
        self.too_long = 0

    def lines(self) -> list[bytes]:
        """The lines that were ended since the last time; half a line is kept for the next."""
        if self._descriptor is None and not self._open():
            return []
        lines = self._read()
        # A file that was renamed is read to its end before the one that took its place.
        if not lines and self._is_replaced():
            self.close()
            return self._read() if self._open() else []
        return lines

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._offset, self._rest, self._is_skipping = None, 0, b"", False

    def _open(self) -> bool:
        try:
            # Without O_NONBLOCK, opening a pipe would wait for its writer.
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def _read(self) -> list[bytes]:
        assert self._descriptor is not None
        if os.fstat(self._descriptor).st_size < self._offset:  # truncated: what follows is new
            self._offset, self._rest, self._is_skipping = 0, b"", False
        content = os.pread(self._descriptor, READ_BYTES, self._offset)
        self._offset += len(content)
        *ended, rest = (self._rest + content).split(b"\n")
        if ended and self._is_skipping:
            self._is_skipping = False
            del ended[0]
        self._rest = b"" if self._is_skipping else rest
        if len(self._rest) > LINE_BYTES:
            self._rest, self._is_skipping = b"", True
            self.too_long += 1
        whole = [line for line in ended if len(line) <= LINE_BYTES]
        self.too_long += len(ended) - len(whole)
        return [line for line in whole if line.strip()]

    def _is_replaced(self) -> bool:
        assert self._descriptor is not None
        try:
            there = self._file.stat()
        except FileNotFoundError:
            return False
        held = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino)
