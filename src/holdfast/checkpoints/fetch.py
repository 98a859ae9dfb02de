"""Fetches a checkpoint of another job, or one that holdfast did not save, from any address (checkpoint.resumeFrom)."""

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
    CheckpointManifest,
    CheckpointName,
    File,
    SaveInfo,
)
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.unpack import UNKNOWN, Reading, unpack

WORKERS = 3


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint at an address: `stored_manifest` is its manifest; without one, `declared` holds its markers."""

    address: str
    files: tuple[File, ...]
    read: Reading
    stored_manifest: CheckpointManifest | None = None
    declared: ShardMarkers | None = None

    @property
    def epoch(self) -> int:
        """The epoch in the folder name, if it has one, else the epoch of the manifest."""
        match = CHECKPOINT.fullmatch(self.address.rstrip("/").rpartition("/")[2])
        if match:
            return int(match[1])
        return self.stored_manifest.epoch if self.stored_manifest is not None else 0

    def manifest(self, name: CheckpointName, about: SaveInfo) -> CheckpointManifest:
        """The manifest of the source as a checkpoint of this job."""
        own = CheckpointManifest(name.epoch, name.attempt, about, self.files)
        if self.stored_manifest is not None and self.stored_manifest.epoch == name.epoch:
            return replace(own, step=self.stored_manifest.step, metrics=self.stored_manifest.metrics)
        if self.stored_manifest is None and self.declared is not None:
            return replace(own, step=self.declared.step, metrics=self.declared.metrics)
        return own


def find(address: str, environ: Mapping[str, str]) -> Source:
    """The checkpoint at `address`: s3://, gs://, az:// or a path."""
    source = _folder(address) if address.startswith("/") else _objects(address, environ)
    if not source.files:
        raise CheckpointNotFound(f"there is no file in {address}: correct checkpoint.resumeFrom")
    if source.stored_manifest is None and source.declared is not None and not source.declared.all_shards_present:
        raise CheckpointNotFound(f"{address} lacks shards, it was never complete: correct checkpoint.resumeFrom")
    manifests.validated_files(source.files)
    return source


def fetch(source: Source, target: Path, name: CheckpointName, about: SaveInfo) -> CheckpointManifest:
    """Put the source into the folder `target`, as this job's checkpoint `name`.

    The content is verified against the manifest; without a manifest, the user is trusted that it is complete.
    """
    manifest = source.manifest(name, about)
    unpack(manifest, target, source.read, workers=WORKERS)
    return manifest


def _folder(address: str) -> Source:
    # The user's path may contain links, up to its last folder; links inside that folder must not lead out of it.
    folder = Path(os.path.realpath(address))
    with translate_os_errors(f"read {folder}"):
        if not folder.is_dir():
            raise CheckpointNotFound(f"there is no folder {folder}: correct checkpoint.resumeFrom")
        entries = list_files(folder)
        content, declared = read_small_file(folder / MANIFEST, manifests.MAX_BYTES), read_markers(folder)
    files = tuple(File(entry.path, entry.stamp.size, UNKNOWN) for entry in entries)
    manifest = _manifest(content, address)
    return Source(
        address, manifest.files if manifest else files, lambda file: _chunks(folder, file.path), manifest, declared
    )


def _objects(address: str, environ: Mapping[str, str]) -> Source:
    bucket = open_bucket(address, environ)
    manifest = _manifest(bucket.read(MANIFEST, manifests.MAX_BYTES), address)
    if manifest is not None:
        return Source(address, manifest.files, lambda file: bucket.stream(file.key), manifest)
    objects = bucket.objects("")
    folders = {item.key[:end] for item in objects for end in range(len(item.key)) if item.key[end] == "/"}
    # The web consoles of some stores create a folder as an empty object of its name.
    real = (item for item in objects if item.key and (item.size or item.key not in folders))
    files = tuple(File(item.key, item.size, UNKNOWN) for item in real if not item.key.startswith(HOLDFAST_PREFIX))
    markers = (item.key for item in objects if item.key.startswith(MARKER) and item.size <= MARKER_BYTES)
    declared = declared_by((key, bucket.read(key, MARKER_BYTES)) for key in markers)
    return Source(address, files, lambda file: bucket.stream(file.key), None, declared)


def _manifest(content: bytes | None, where: str) -> CheckpointManifest | None:
    return manifests.decode(content, where) if content is not None else None


def _chunks(folder: Path, path: str) -> Iterator[bytes]:
    try:
        with regular(folder, path) as file, file.open("rb", buffering=0) as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk
    except LeavesFolder:
        raise UnsafeContent(f"the link {folder / path} leads out of {folder}: put a copy of the file there") from None
