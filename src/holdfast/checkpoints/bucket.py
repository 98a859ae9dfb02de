"""The few things that are asked of an object store, below one prefix of one bucket."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class Object(NamedTuple):
    key: str
    size: int


class Bucket(Protocol):
    """Keys are relative to the prefix. An object is there whole or not at all, and can be seen once it was put."""

    @property
    def address(self) -> str:
        """Where it is, for people; never with credentials."""
        ...

    def objects(self, folder: str) -> list[Object]:
        """Everything below a folder."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder."""
        ...

    def files(self, folder: str) -> list[str]:
        """The names of the objects in a folder itself."""
        ...

    def read(self, key: str, limit: int) -> bytes | None:
        """The object, or None if there is none. Refused if it is larger than the limit."""
        ...

    def sha256(self, key: str) -> str | None:
        """The digest that it was put with, if it is there and was put with one."""
        ...

    def put(self, key: str, content: bytes) -> None: ...

    def put_file(self, key: str, file: Path, size: int, sha256: str, *, parts_at_once: int) -> None:
        """`file` leads to the content for as long as this takes."""
        ...

    def stream(self, key: str, offset: int = 0) -> Iterator[bytes | memoryview]:
        """The content from `offset` on, which is less than its size, in pieces; nothing if there is no such object."""
        ...

    def copy(self, source: str, target: str, size: int) -> None:
        """Within the bucket."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Those that are there."""
        ...
