"""A bucket of S3, Google Cloud Storage or Azure, through obstore."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.checkpoints.bucket import Object
from holdfast.checkpoints.errors import BucketNotFound, StoreError, UnsafeContent
from holdfast.checkpoints.trouble import CODE, NO_BUCKET, translate_error

# S3 takes no smaller part than 5 MiB, and no more than 10,000 of them.
PART_BYTES = 5 << 20
MAX_PARTS = 9_000
READ_BYTES = 1 << 20
# A stream that breaks is gone on with where it broke, as long as it gets anywhere.
TRIES_WITHOUT_PROGRESS = 4
# S3 copies no larger object by itself.
COPY_BYTES = 4 << 30
SHA256 = "sha256"
FAILURES = (BaseError, OSError, ValueError)


class ObstoreBucket:
    """obstore is given the prefix, and refuses keys that would leave it."""

    def __init__(self, store: S3Store | GCSStore | AzureStore, address: str) -> None:
        self._store = store
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    def objects(self, folder: str) -> list[Object]:
        with self._translating_errors(f"list {folder or 'files'}"):
            return [Object(item["path"], item["size"]) for items in obstore.list(self._store, folder) for item in items]

    def folders(self, folder: str) -> list[str]:
        return self._listed(folder)[0]

    def files(self, folder: str) -> list[str]:
        return self._listed(folder)[1]

    def read(self, key: str, limit: int) -> bytes | None:
        with self._translating_errors(f"read {key}"):
            try:
                answer = obstore.get(self._store, key)
                if answer.meta["size"] > limit:
                    raise UnsafeContent(
                        f"{key} in {self._address} is larger than {limit >> 10} KiB: it is not holdfast's"
                    )
                return bytes(answer.bytes())
            except FileNotFoundError as error:
                self._bucket_is_there(error)
                return None

    def sha256(self, key: str) -> str | None:
        with self._translating_errors(f"look at {key}"):
            try:
                return obstore.get(self._store, key, options={"head": True}).attributes.get(SHA256)
            except FileNotFoundError:
                return None

    def put(self, key: str, content: bytes) -> None:
        with self._translating_errors(f"write {key}", writing=True):
            obstore.put(self._store, key, content, use_multipart=False)

    def put_file(self, key: str, file: Path, size: int, sha256: str, *, parts_at_once: int) -> None:
        part = max(PART_BYTES, -(-size // MAX_PARTS))
        with self._translating_errors(f"write {key}", writing=True):
            obstore.put(
                self._store,
                key,
                file,
                attributes={SHA256: sha256},
                use_multipart=size > part,
                chunk_size=part,
                max_concurrency=parts_at_once,
            )

    def stream(self, key: str, offset: int = 0) -> Iterator[bytes | memoryview]:
        size, failures = -1, 0
        # A range that begins at the end is an error to a store: what broke right there is whole.
        while offset != size:
            try:
                answer = obstore.get(self._store, key, options={"range": {"offset": offset}} if offset else None)
                size = answer.meta["size"]
                for chunk in answer.stream(min_chunk_size=READ_BYTES):
                    yield memoryview(chunk)
                    offset, failures = offset + len(chunk), 0
                return
            except FileNotFoundError as error:
                self._bucket_is_there(error)
                return
            except FAILURES as error:
                failures += 1
                if failures == TRIES_WITHOUT_PROGRESS:
                    raise translate_error(error, f"read {key}", self._address, writing=False) from None

    def copy(self, source: str, target: str, size: int) -> None:
        with self._translating_errors(f"copy {source}", writing=True):
            if size <= COPY_BYTES:
                obstore.copy(self._store, source, target)
            else:
                part = max(PART_BYTES, -(-size // MAX_PARTS))
                obstore.put(self._store, target, self.stream(source), chunk_size=part, max_concurrency=1)

    def delete(self, keys: Sequence[str]) -> None:
        with self._translating_errors("delete", writing=True):
            try:
                obstore.delete(self._store, keys)
            except FileNotFoundError:
                # Some stores mind when one of them is gone already, and leave the others.
                for key in keys:
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, key)

    def _listed(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of its folders, and of its files."""
        with self._translating_errors(f"list {folder or 'checkpoints'}"):
            found = obstore.list_with_delimiter(self._store, folder or None)
        files = (item["path"] for item in found["objects"])
        return [_leaf(path) for path in found["common_prefixes"]], [_leaf(path) for path in files]

    def _bucket_is_there(self, error: FileNotFoundError) -> None:
        """A missing bucket must not pass for a missing checkpoint: a training would begin anew."""
        code = CODE.search(str(error))
        if code and code[1] in NO_BUCKET:
            raise translate_error(error, "read checkpoints", self._address, writing=False) from None

    @contextlib.contextmanager
    def _translating_errors(self, tried: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise _not_found(error, tried, self._address, writing=writing) from None
        except FAILURES as error:
            raise translate_error(error, tried, self._address, writing=writing) from None


def _not_found(error: FileNotFoundError, tried: str, address: str, *, writing: bool) -> StoreError:
    """Of a list or a write: the bucket is not there, whatever the store calls that."""
    found = translate_error(error, tried, address, writing=writing)
    return (
        found
        if isinstance(found, BucketNotFound)
        else BucketNotFound(f"can't {tried} in {address}: there is no such bucket")
    )


def _leaf(path: str) -> str:
    return path.rsplit("/", 1)[-1]
