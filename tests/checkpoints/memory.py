"""A bucket in memory, whose caller can be made to die at any request."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoints.errors import UnsafeContent
from holdfast.checkpoints.object_store import BucketObject

CHUNK_BYTES = 64


class Died(BaseException):
    """The process is gone; nothing catches it."""


class Stored(NamedTuple):
    content: bytes
    sha256: str | None


class MemoryBucket:
    """`before` is called ahead of every request that reads, `change` carries out every one that writes."""

    def __init__(
        self,
        before: Callable[[], None] = lambda: None,
        change: Callable[[Callable[[], None]], None] = lambda carry_out: carry_out(),
    ) -> None:
        self.stored: dict[str, Stored] = {}
        self.puts: list[str] = []
        self.before = before
        self.change = change

    @property
    def address(self) -> str:
        return "memory://bucket/job"

    def objects(self, folder: str) -> list[BucketObject]:
        self.before()
        return [BucketObject(key, len(held.content)) for key, held in self.stored.items() if _below(key, folder)]

    def folders(self, folder: str) -> list[str]:
        self.before()
        prefix = f"{folder}/" if folder else ""
        rests = (key.removeprefix(prefix) for key in self.stored if key.startswith(prefix))
        return sorted({rest.split("/", 1)[0] for rest in rests if "/" in rest})

    def files(self, folder: str) -> list[str]:
        self.before()
        prefix = f"{folder}/" if folder else ""
        rests = (key.removeprefix(prefix) for key in self.stored if key.startswith(prefix))
        return sorted(rest for rest in rests if "/" not in rest)

    def read(self, key: str, limit: int) -> bytes | None:
        self.before()
        held = self.stored.get(key)
        if held and len(held.content) > limit:
            raise UnsafeContent(f"{key} is too large")
        return held.content if held else None

    def sha256(self, key: str) -> str | None:
        self.before()
        held = self.stored.get(key)
        return held.sha256 if held else None

    def put(self, key: str, content: bytes) -> None:
        self._keep(key, Stored(content, None))

    def put_file(self, key: str, file: Path, size: int, sha256: str, *, parts_at_once: int) -> None:
        self._keep(key, Stored(file.read_bytes(), sha256))

    def stream(self, key: str, offset: int = 0) -> Iterator[bytes | memoryview]:
        held = self.stored.get(key)
        content = held.content if held else b""
        for start in range(offset, len(content), CHUNK_BYTES):
            self.before()
            yield content[start : start + CHUNK_BYTES]

    def copy(self, source: str, target: str, size: int) -> None:
        self._keep(target, self.stored[source])

    def delete(self, keys: Sequence[str]) -> None:
        """One after the other: a caller that dies may leave some."""
        for key in keys:
            self.change(lambda key=key: self.stored.pop(key, None) and None)  # type: ignore[misc]  # a default binds it

    def _keep(self, key: str, held: Stored) -> None:
        def carry_out() -> None:
            self.stored[key] = held
            self.puts.append(key)

        self.change(carry_out)


def _below(key: str, folder: str) -> bool:
    return not folder or key.startswith(f"{folder}/")
