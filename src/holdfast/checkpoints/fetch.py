"""A checkpoint of another job, or one that holdfast did not save, from wherever it is (checkpoint.resumeFrom)."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.completeness import MARKER, MARKER_BYTES, ShardMarkers, declared_by, read_markers
from holdfast.checkpoints.confined_files import LeavesFolder, regular
from holdfast.checkpoints.errors import CheckpointNotFound, UnsafeContent
from holdfast.checkpoints.files import CHUNK_BYTES, list_files, read_small_file, translate_os_errors
from holdfast.checkpoints.manifest import (
    CHECKPOINT,
    HOLDFAST_PREFIX,
    MANIFEST,
    CheckpointName,
    File,
    Manifest,
    SaveInfo,
)
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.unpack import UNKNOWN, Reading, unpack

WORKERS = 3


@dataclass(frozen=True, slots=True)
class Source:
    """What is at an address: `said` is its manifest, or `declared` what its markers tell where it has none."""

    address: str
    files: tuple[File, ...]
    read: Reading
    said: Manifest | None = None
    declared: ShardMarkers | None = None

    @property
    def epoch(self) -> int:
        """That of its name, if it has one, else that of its manifest."""
        match = CHECKPOINT.fullmatch(self.address.rstrip("/").rpartition("/")[2])
        if match:
            return int(match[1])
        return self.said.epoch if self.said is not None else 0

    def manifest(self, name: CheckpointName, about: SaveInfo) -> Manifest:
        """As a checkpoint of this job."""
        own = Manifest(name.epoch, name.attempt, about, self.files)
        if self.said is not None and self.said.epoch == name.epoch:
            return replace(own, step=self.said.step, metrics=self.said.metrics)
        if self.said is None and self.declared is not None:
            return replace(own, step=self.declared.step, metrics=self.declared.metrics)
        return own


def find(address: str, environ: Mapping[str, str]) -> Source:
    """What is at `address`: s3://, gs://, az:// or a path."""
    source = _folder(address) if address.startswith("/") else _objects(address, environ)
    if not source.files:
        raise CheckpointNotFound(f"there is no file in {address}: correct checkpoint.resumeFrom")
    if source.said is None and source.declared is not None and not source.declared.all_shards_present:
        raise CheckpointNotFound(f"{address} lacks shards, it was never complete: correct checkpoint.resumeFrom")
    manifests.validated_files(source.files)
    return source


def fetch(source: Source, target: Path, name: CheckpointName, about: SaveInfo) -> Manifest:
    """Put it into the folder `target`, as this job's checkpoint `name`.

    What its manifest says is checked; without one, the user's word that it is whole counts.
    """
    manifest = source.manifest(name, about)
    unpack(manifest, target, source.read, workers=WORKERS)
    return manifest


def _folder(address: str) -> Source:
    # The user's path may hold links, as far as its last folder; in there they must not lead out.
    folder = Path(os.path.realpath(address))
    with translate_os_errors(f"read {folder}"):
        if not folder.is_dir():
            raise CheckpointNotFound(f"there is no folder {folder}: correct checkpoint.resumeFrom")
        there = list_files(folder)
        content, declared = read_small_file(folder / MANIFEST, manifests.MAX_BYTES), read_markers(folder)
    files = tuple(File(entry.path, entry.stamp.size, UNKNOWN) for entry in there)
    said = _manifest(content, address)
    return Source(address, said.files if said else files, lambda file: _chunks(folder, file.path), said, declared)


def _objects(address: str, environ: Mapping[str, str]) -> Source:
    bucket = open_bucket(address, environ)
    said = _manifest(bucket.read(MANIFEST, manifests.MAX_BYTES), address)
    if said is not None:
        return Source(address, said.files, lambda file: bucket.stream(file.key), said)
    there = bucket.objects("")
    folders = {one.key[:end] for one in there for end in range(len(one.key)) if one.key[end] == "/"}
    # The web pages of some stores make a folder by an empty object of its name.
    real = (one for one in there if one.key and (one.size or one.key not in folders))
    files = tuple(File(one.key, one.size, UNKNOWN) for one in real if not one.key.startswith(HOLDFAST_PREFIX))
    markers = (one.key for one in there if one.key.startswith(MARKER) and one.size <= MARKER_BYTES)
    declared = declared_by((key, bucket.read(key, MARKER_BYTES)) for key in markers)
    return Source(address, files, lambda file: bucket.stream(file.key), None, declared)


def _manifest(content: bytes | None, where: str) -> Manifest | None:
    return manifests.decode(content, where) if content is not None else None


def _chunks(folder: Path, path: str) -> Iterator[bytes]:
    try:
        with regular(folder, path) as file, file.open("rb", buffering=0) as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk
    except LeavesFolder:
        raise UnsafeContent(f"the link {folder / path} leads out of {folder}: put a copy of the file there") from None
