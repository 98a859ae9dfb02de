"""A checkpoint of another job, or one that holdfast did not save, from wherever it is (checkpoint.resumeFrom)."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.content import CHUNK_BYTES, entries, read_own
from holdfast.checkpoints.disk import explained
from holdfast.checkpoints.errors import NoCheckpoint
from holdfast.checkpoints.manifest import About, File, Manifest
from holdfast.checkpoints.names import MANIFEST, OWN, Name
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.unpack import UNKNOWN, Reading, unpack

WORKERS = 3


def fetch(address: str, environ: Mapping[str, str], target: Path, name: Name, about: About) -> Manifest:
    """Put the folder at `address` (s3://, gs://, az:// or a path) into `target`, as this job's checkpoint `name`.

    What its manifest says is checked; without one, the user's word that it is whole counts.
    """
    files, read = _folder(Path(address)) if address.startswith("/") else _objects(address, environ)
    if not files:
        raise NoCheckpoint(f"there is no file in {address}: correct checkpoint.resumeFrom")
    manifest = Manifest(name.epoch, name.attempt, about, files)
    manifests.checked(files)
    unpack(manifest, target, read, workers=WORKERS)
    return manifest


def _folder(folder: Path) -> tuple[tuple[File, ...], Reading]:
    with explained(f"read {folder}"):
        if not folder.is_dir():
            raise NoCheckpoint(f"there is no folder {folder}: correct checkpoint.resumeFrom")
        there = entries(folder)
        content = read_own(folder / MANIFEST, manifests.MAX_BYTES)
    files = tuple(File(entry.path, entry.stamp.size, UNKNOWN) for entry in there)
    return _wanted(content, files, str(folder)), lambda file: _chunks(folder / file.path)


def _objects(address: str, environ: Mapping[str, str]) -> tuple[tuple[File, ...], Reading]:
    bucket = open_bucket(address, environ)
    content = bucket.read(MANIFEST, manifests.MAX_BYTES)
    there = [] if content is not None else bucket.objects("")
    folders = {one.key[:end] for one in there for end in range(len(one.key)) if one.key[end] == "/"}
    # The web pages of some stores make a folder by an empty object of its name.
    real = (one for one in there if one.key and (one.size or one.key not in folders))
    files = tuple(File(one.key, one.size, UNKNOWN) for one in real if not one.key.startswith(OWN))
    return _wanted(content, files, address), lambda file: bucket.stream(file.key)


def _wanted(content: bytes | None, there: tuple[File, ...], where: str) -> tuple[File, ...]:
    return manifests.decode(content, where).files if content is not None else there


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk
