"""A watch's lines, whole again however the network cut them."""

from collections.abc import Iterator

# Far above any object that etcd takes: a line beyond it is not a line of the API server.
LONGEST_LINE = 64 * 2**20


class LineTooLong(ValueError):
    """What comes in is not lines of JSON."""


class LineBuffer:
    """Feed it chunks; it gives the lines that are complete."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._pending: list[bytes] = []
        self._size = 0
        self._longest = longest

    @property
    def has_partial_line(self) -> bool:
        """Has a line begun that has not ended?"""
        return bool(self._pending)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join((*self._pending, end))
            self._pending, self._size = [], 0
            if line.strip():
                yield line
        if rest:
            self._size += len(rest)
            if self._size > self._longest:
                raise LineTooLong(f"a line of more than {self._longest} bytes")
            self._pending.append(rest)
