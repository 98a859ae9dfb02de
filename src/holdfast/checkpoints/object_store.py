"""The store in a bucket. The layout is that of a volume: {prefix}/attempt-{n}/checkpoint-epoch-{N}/…

No object that a manifest references is ever overwritten: when a checkpoint is saved anew under its old name, files that
differ get keys of their own, then the manifest is replaced, and only then are the old objects deleted.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Semaphore
from typing import NamedTuple, Protocol

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.completeness import ShardMarkers, described, read_markers
from holdfast.checkpoints.errors import InvalidCheckpointManifest, MissingPart, UnsafeContent
from holdfast.checkpoints.files import FileEntry, FolderListing, ensure_unchanged, listing, sha256_of
from holdfast.checkpoints.manifest import (
    HOLDFAST_PREFIX,
    MANIFEST,
    CheckpointManifest,
    CheckpointName,
    File,
    SaveInfo,
    parse,
)
from holdfast.checkpoints.store import LEASE, NO_METRICS, decided_attempts, decision_path, require_manifest
from holdfast.checkpoints.unpack import map_in_threads, unpack, verify_stream

# The operations that an object store has to provide, below one prefix of one bucket.


class BucketObject(NamedTuple):
    key: str
    size: int


class Bucket(Protocol):
    """Keys are relative to the prefix. Writes are atomic, and an object is visible once it was put."""

    @property
    def address(self) -> str:
        """The address of the bucket for messages; never with credentials."""
        ...

    def objects(self, folder: str) -> list[BucketObject]:
        """All objects below a folder."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder."""
        ...

    def files(self, folder: str) -> list[str]:
        """The names of the objects in a folder itself."""
        ...

    def read(self, key: str, limit: int) -> bytes | None:
        """The content of the object, or None if there is none. Raises UnsafeContent if it is larger than the limit."""
        ...

    def sha256(self, key: str) -> str | None:
        """The digest that the object was put with; None without an object or without a digest."""
        ...

    def put(self, key: str, content: bytes) -> None: ...

    def put_file(self, key: str, file: Path, size: int, sha256: str, *, parts_at_once: int) -> None:
        """Put a file. The path `file` has to stay valid during the call."""
        ...

    def stream(self, key: str, offset: int = 0) -> Iterator[bytes | memoryview]:
        """The content from `offset` on, which is less than its size, in chunks; empty if there is no such object."""
        ...

    def copy(self, source: str, target: str, size: int) -> None:
        """Copy an object within the bucket."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects that exist."""
        ...


# Each worker holds two parts in memory while it uploads: with the interpreter 63 MiB, and four were not faster.
WORKERS = 3
# Large files take memory while they are sent, and so does the metadata of many files: not both at once.
MANY_FILES, LARGE_BYTES = 1000, 1 << 20
NOTE_BYTES = 64 << 10
PART = re.compile(rf"{re.escape(HOLDFAST_PREFIX)}part-(0|[1-9][0-9]{{0,5}})\.json")


class ObjectStore:
    """One prefix of a bucket. `workers` is how many files, or parts of a file, are transferred at once."""

    def __init__(self, bucket: Bucket, *, workers: int = WORKERS) -> None:
        self._bucket = bucket
        self._workers = workers

    @property
    def address(self) -> str:
        return self._bucket.address

    def names(self, until: int) -> list[CheckpointName]:
        attempts = [folder for folder in self._bucket.folders("") if _attempt(folder) in range(until + 1)]
        names = (parse(attempt, leaf) for attempt in attempts for leaf in self._bucket.folders(attempt))
        return sorted((name for name in names if name is not None), reverse=True)

    def manifest(self, name: CheckpointName) -> CheckpointManifest | None:
        return self._read_manifest(name, MANIFEST)

    def put(
        self,
        name: CheckpointName,
        source: Path,
        about: SaveInfo,
        expected: tuple[FileEntry, ...] | None = None,
        *,
        ranks: Collection[int] | None = None,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> CheckpointManifest:
        """Upload, and merge the parts of other workers: the parts of `ranks`, or else all that are stored."""
        before = self._referenced_keys(name)
        declared, files = self._upload(name, source, "", before, expected)
        manifest = described(name, about, files, declared, metrics)
        if about.world > 1:
            manifest = replace(manifest, files=self._merge_shards(name, manifest, ranks))
        self._bucket.put(f"{name.folder}/{MANIFEST}", manifests.encode(manifest))
        referenced = {file.key for file in manifest.files}
        self._delete(name, [file.key for file in before if file.key not in referenced])
        return manifest

    def put_shard(
        self,
        name: CheckpointName,
        source: Path,
        rank: int,
        about: SaveInfo,
        expected: tuple[FileEntry, ...] | None = None,
    ) -> CheckpointManifest:
        """Upload the part of a worker other than the first. It counts once the first worker's `put` has merged it."""
        part = f"{HOLDFAST_PREFIX}part-{rank}.json"
        before = (*self._referenced_keys(name), *self._referenced_keys(name, part))
        declared, files = self._upload(name, source, f"{HOLDFAST_PREFIX}rank-{rank}/", before, expected)
        manifest = described(name, about, files, declared, NO_METRICS)
        self._bucket.put(f"{name.folder}/{part}", manifests.encode(manifest))
        return manifest

    def forget_parts(self, attempt: int) -> None:
        """Delete the parts of saves that will never be finished: a later save of the same step must not merge them."""
        for name in self.names(attempt):
            if name.attempt == attempt:
                self._delete(name, [f"{HOLDFAST_PREFIX}part-{rank}.json" for rank in self._parts(name)])

    def write_missing_manifest(self, name: CheckpointName, about: SaveInfo) -> CheckpointManifest | None:
        """Never writes one: without a manifest, the missing files are not known."""
        return None

    def get(self, name: CheckpointName, target: Path) -> CheckpointManifest:
        manifest = require_manifest(self, name)
        unpack(manifest, target, lambda file: self._stream(name, file), workers=self._workers, durable=False)
        return manifest

    def verify(self, name: CheckpointName) -> CheckpointManifest:
        manifest = require_manifest(self, name)
        map_in_threads(
            lambda file: verify_stream(file, lambda file: self._stream(name, file)), manifest.files, self._workers
        )
        return manifest

    def delete(self, name: CheckpointName) -> None:
        """Delete the manifest first: from then on it is no checkpoint, even if the other deletions fail."""
        keys = [item.key.removeprefix(f"{name.folder}/") for item in self._bucket.objects(name.folder)]
        self._delete(name, [key for key in keys if key == MANIFEST])
        self._delete(name, [key for key in keys if PART.fullmatch(key)])
        self._delete(name, [key for key in keys if key != MANIFEST and not PART.fullmatch(key)])

    def quarantine(self, name: CheckpointName) -> str:
        """Copy all objects, and delete them only after that; the manifest is copied last, and deleted first."""
        target = self._unused_prefix(name.quarantined)
        manifest = f"{name.folder}/{MANIFEST}"
        for key, size in sorted(self._bucket.objects(name.folder), key=lambda item: item.key == manifest):
            self._bucket.copy(key, f"{target}{key.removeprefix(name.folder)}", size)
        self.delete(name)
        return f"{self.address}/{target}"

    def read_decision(self, attempt: int) -> bytes | None:
        return self._bucket.read(decision_path(attempt), NOTE_BYTES)

    def write_decision(self, attempt: int, content: bytes) -> None:
        self._bucket.put(decision_path(attempt), content)

    def lease(self) -> bytes | None:
        return self._bucket.read(LEASE, NOTE_BYTES)

    def write_lease(self, content: bytes) -> None:
        self._bucket.put(LEASE, content)

    def decided_attempts(self) -> list[int]:
        return decided_attempts(self._bucket.files(""))

    def _upload(
        self,
        name: CheckpointName,
        source: Path,
        key_prefix: str,
        before: Sequence[File],
        expected: tuple[FileEntry, ...] | None,
    ) -> tuple[ShardMarkers | None, list[File]]:
        with listing(source) as listed:
            listed.must_be(expected)
            declared = read_markers(source)
            files = self._send(name, listed, key_prefix, {file.key: file.sha256 for file in before})
        ensure_unchanged(source, listed.content)
        return declared, files

    def _send(
        self, name: CheckpointName, listed: FolderListing, key_prefix: str, referenced: Mapping[str, str]
    ) -> list[File]:
        content = listed.content
        stored_sizes = {
            item.key.removeprefix(f"{name.folder}/"): item.size for item in self._bucket.objects(name.folder)
        }
        # A single large file is sent in several parts at once, many small ones next to each other.
        parts_at_once = max(1, self._workers // len(content))
        large_file_slots = Semaphore(1 if len(content) > MANY_FILES else self._workers)

        def send(entry: FileEntry) -> File:
            with listed.reading(entry) as path:
                file = _target_key(entry, sha256_of(path), key_prefix, referenced)
                with large_file_slots if file.size > LARGE_BYTES else nullcontext():
                    if not self._is_uploaded(name, file, stored_sizes):
                        key = f"{name.folder}/{file.key}"
                        self._bucket.put_file(key, path, file.size, file.sha256, parts_at_once=parts_at_once)
                return file

        return map_in_threads(send, content, self._workers)

    def _is_uploaded(self, name: CheckpointName, file: File, stored_sizes: Mapping[str, int]) -> bool:
        """Whether the file was uploaded already, by an interrupted attempt or for an earlier manifest."""
        return (
            stored_sizes.get(file.key) == file.size and self._bucket.sha256(f"{name.folder}/{file.key}") == file.sha256
        )

    def _merge_shards(
        self, name: CheckpointName, own: CheckpointManifest, ranks: Collection[int] | None
    ) -> tuple[File, ...]:
        """The own files and the files of the parts. A part of another save does not belong to this checkpoint."""
        wanted = self._parts(name) if ranks is None else sorted(ranks)
        merged = {file.path: file for file in own.files}
        for rank in wanted:
            part = self._read_manifest(name, f"{HOLDFAST_PREFIX}part-{rank}.json")
            is_other_save = part is not None and own.save != part.save
            if part is None or (is_other_save and ranks is not None):
                raise MissingPart(f"{name} lacks the part of worker {rank}: it is waited for")
            if not is_other_save:
                for file in part.files:
                    merged.setdefault(file.path, file)
        return tuple(merged.values())

    def _parts(self, name: CheckpointName) -> list[int]:
        keys = (item.key.removeprefix(f"{name.folder}/") for item in self._bucket.objects(name.folder))
        return sorted(int(match[1]) for match in map(PART.fullmatch, keys) if match)

    def _referenced_keys(self, name: CheckpointName, key: str = MANIFEST) -> tuple[File, ...]:
        """The files that a manifest references, which must not be overwritten."""
        try:
            manifest = self._read_manifest(name, key)
        except UnsafeContent:
            return ()
        return manifest.files if manifest else ()

    def _read_manifest(self, name: CheckpointName, key: str) -> CheckpointManifest | None:
        content = self._bucket.read(f"{name.folder}/{key}", manifests.MAX_BYTES)
        if content is None:
            return None
        manifest = manifests.decode(content, str(name))
        if (manifest.epoch, manifest.attempt) != (name.epoch, name.attempt):
            raise InvalidCheckpointManifest(f"the manifest of {name} in {self.address} is that of another checkpoint")
        return manifest

    def _stream(self, name: CheckpointName, file: File) -> Iterator[bytes | memoryview]:
        return self._bucket.stream(f"{name.folder}/{file.key}")

    def _delete(self, name: CheckpointName, keys: Iterable[str]) -> None:
        if paths := [f"{name.folder}/{key}" for key in keys]:
            self._bucket.delete(paths)

    def _unused_prefix(self, target: str) -> str:
        """A prefix without a finished quarantine."""
        number, free = 2, target
        while self._bucket.read(f"{free}/{MANIFEST}", manifests.MAX_BYTES) is not None:
            free = f"{target}-{number}"
            number += 1
        return free


def _target_key(entry: FileEntry, sha256: str, key_prefix: str, referenced: Mapping[str, str]) -> File:
    """The key of a file: its path, unless a manifest references other content there."""
    key = f"{key_prefix}{entry.path}"
    if referenced.get(key, sha256) != sha256:
        key = f"{HOLDFAST_PREFIX}{sha256[:16]}/{key}"
    return File(entry.path, entry.stamp.size, sha256, key if key != entry.path else "")


def _attempt(folder: str) -> int:
    name = parse(folder, "checkpoint-epoch-0")
    return name.attempt if name else -1
