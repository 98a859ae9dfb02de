"""What a local registry has on disk: blobs by their digest, manifests and tags by repository, and uploads under way.

Every file appears by a rename when it is whole and verified, so a crash at any moment leaves uploads that go on, and
nothing else. Blobs that no manifest names are removed when a manifest is deleted, and at the start.
"""

import contextlib
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.checkpoints.images.image import MAX_MANIFEST, sha256_digest
from holdfast.errors import HoldfastError

CHUNK = 1 << 20
# An upload that nobody went on with, and a blob whose manifest never came.
UPLOAD_EXPIRES_S = 24 * 3600.0
BLOB_GRACE_S = 3600.0
UPLOAD_ID = re.compile(r"[0-9a-f]{32}")


class RegistryRefusal(HoldfastError):
    """An answer of the registry other than success: the HTTP status and the code of the OCI specification."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class StoredManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        return sha256_digest(self.content)


class _Named(msgspec.Struct, frozen=True):
    digest: str


class _References(msgspec.Struct, frozen=True, rename="camel"):
    """What a manifest, or an index of manifests, is made of."""

    config: _Named | None = None
    layers: tuple[_Named, ...] = ()
    manifests: tuple[_Named, ...] = ()


class _Progress(NamedTuple):
    digest: "hashlib._Hash"
    size: int


class RegistryStorage:
    """All methods block on the disk: call them in a thread. One process uses the folder at a time."""

    def __init__(self, root: Path) -> None:
        self._blobs = root / "blobs" / "sha256"
        self._uploads = root / "uploads"
        self._repositories = root / "repositories"
        self._digests: dict[str, _Progress] = {}
        self._lock = threading.Lock()
        for folder in (self._blobs, self._uploads, self._repositories):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    # Blobs.

    def blob(self, digest: str) -> Path | None:
        """A blob that is asked for counts as young: whoever finds it need not push it, and a manifest may follow."""
        path = self._blob_path(digest)
        with contextlib.suppress(FileNotFoundError), self._lock:
            os.utime(path)
            return path
        return None

    def begin_upload(self) -> str:
        upload = secrets.token_hex(16)
        (self._uploads / upload).touch(mode=0o600)
        return upload

    def upload_size(self, upload: str) -> int:
        try:
            return self._upload_path(upload).stat().st_size
        except FileNotFoundError:
            raise RegistryRefusal(404, "BLOB_UPLOAD_UNKNOWN", "there is no such upload: begin a new one") from None

    def append(self, upload: str, chunk: bytes) -> None:
        before = self.upload_size(upload)
        with self._upload_path(upload).open("ab") as file:
            file.write(chunk)
        progress = self._digests.get(upload) or _Progress(hashlib.sha256(), 0)
        # After a restart the digest of what is there already is not known: it is computed in the end.
        if progress.size == before:
            progress.digest.update(chunk)
            self._digests[upload] = _Progress(progress.digest, before + len(chunk))

    def cancel_upload(self, upload: str) -> None:
        self.upload_size(upload)
        self._digests.pop(upload, None)
        self._upload_path(upload).unlink(missing_ok=True)

    def finish_upload(self, upload: str, digest: str) -> None:
        """The upload becomes a blob, if it has that digest; else it is gone, since its content can't be trusted."""
        size, path = self.upload_size(upload), self._upload_path(upload)
        known = self._digests.pop(upload, None)
        found = known.digest.hexdigest() if known is not None and known.size == size else _sha256(path)
        if f"sha256:{found}" != digest:
            path.unlink(missing_ok=True)
            raise RegistryRefusal(
                400, "DIGEST_INVALID", f"{size} bytes were uploaded with the digest sha256:{found}, not {digest}"
            )
        _sync(path)
        target = self._blob_path(digest)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _rename(path, target)

    # Manifests and tags.

    def manifest(self, repository: str, reference: str) -> StoredManifest:
        folder = self._repositories / repository
        digest = reference if ":" in reference else _read_tag(folder / "_tags" / reference)
        try:
            content = (folder / "_manifests" / _hex(digest)).read_bytes() if digest else None
        except FileNotFoundError:
            content = None
        if content is None:
            raise RegistryRefusal(404, "MANIFEST_UNKNOWN", f"{repository} has no manifest {reference}")
        media_type, _, body = content.partition(b"\n")
        return StoredManifest(media_type=media_type.decode(), content=body)

    def put_manifest(self, repository: str, reference: str, manifest: StoredManifest) -> None:
        """Store it, and last the tag; all that it names must be there."""
        is_tag = ":" not in reference
        if not is_tag and reference != manifest.digest:
            raise RegistryRefusal(400, "DIGEST_INVALID", f"the manifest has the digest {manifest.digest}")
        folder, named = self._repositories / repository, _references(manifest.content)
        for digest in named:
            if self.blob(digest) is None and not (folder / "_manifests" / _hex(digest)).is_file():
                raise RegistryRefusal(400, "MANIFEST_BLOB_UNKNOWN", f"the manifest names {digest}: push that first")
        for part in ("_manifests", "_tags"):
            (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        content = manifest.media_type.encode() + b"\n" + manifest.content
        _write(folder / "_manifests" / _hex(manifest.digest), content)
        if is_tag:
            _write(folder / "_tags" / reference, manifest.digest.encode())

    def delete_manifest(self, repository: str, reference: str) -> None:
        """By digest with all its tags, or one tag alone."""
        manifest, folder = self.manifest(repository, reference), self._repositories / repository
        if ":" not in reference:
            (folder / "_tags" / reference).unlink(missing_ok=True)
            return
        for tag in self.tags(repository):
            if _read_tag(folder / "_tags" / tag) == manifest.digest:
                (folder / "_tags" / tag).unlink(missing_ok=True)
        (folder / "_manifests" / _hex(manifest.digest)).unlink(missing_ok=True)
        self.collect_garbage()

    def tags(self, repository: str) -> list[str]:
        folder = self._repositories / repository
        if not (folder / "_manifests").is_dir():
            raise RegistryRefusal(404, "NAME_UNKNOWN", f"there is no repository {repository}")
        return sorted(path.name for path in (folder / "_tags").iterdir() if not path.name.startswith("."))

    def collect_garbage(self, now: float | None = None) -> None:
        """Remove blobs that no manifest names, and uploads that nobody goes on with; young ones are left."""
        now = time.time() if now is None else now
        for path in self._uploads.iterdir():
            if now - path.stat().st_mtime > UPLOAD_EXPIRES_S:
                self._digests.pop(path.name, None)
                path.unlink(missing_ok=True)
        named = {digest for manifest in self._all_manifests() for digest in _references(manifest)}
        for path in self._blobs.glob("*/*"):
            with self._lock:
                if f"sha256:{path.name}" not in named and now - path.stat().st_mtime > BLOB_GRACE_S:
                    path.unlink(missing_ok=True)

    def _all_manifests(self) -> Iterator[bytes]:
        for path in self._repositories.glob("**/_manifests/*"):
            if not path.name.startswith("."):
                yield path.read_bytes().partition(b"\n")[2]

    def _blob_path(self, digest: str) -> Path:
        name = _hex(digest)
        return self._blobs / name[:2] / name

    def _upload_path(self, upload: str) -> Path:
        if not UPLOAD_ID.fullmatch(upload):
            raise RegistryRefusal(404, "BLOB_UPLOAD_UNKNOWN", "there is no such upload: begin a new one")
        return self._uploads / upload


def _references(manifest: bytes) -> list[str]:
    if len(manifest) > MAX_MANIFEST:
        raise RegistryRefusal(413, "MANIFEST_INVALID", f"the manifest is larger than {MAX_MANIFEST} bytes")
    try:
        found = msgspec.json.decode(manifest, type=_References)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RegistryRefusal(400, "MANIFEST_INVALID", "the manifest is not one of an image") from None
    config = (found.config,) if found.config is not None else ()
    digests = [each.digest for each in (*config, *found.layers, *found.manifests)]
    if not all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in digests):
        raise RegistryRefusal(400, "MANIFEST_INVALID", "the manifest names digests other than sha256")
    return digests


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _read_tag(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(content)
    _sync(partial)
    _rename(partial, path)


def _rename(source: Path, target: Path) -> None:
    """So that it survives a power cut, too."""
    source.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
