"""The manifest of a checkpoint: its files, their sizes and digests. It is written last, and makes a checkpoint one."""

import json
import re
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.errors import BadManifest, Refused
from holdfast.checkpoints.names import OWN
from holdfast.checkpoints.paths import MAX_KEY_BYTES, check_path, check_together

VERSION = 1
# Of a file it says 120 bytes and its path.
MAX_BYTES = 4 << 20
MAX_SIZE = 1 << 62
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size: int
    sha256: str
    # In an object store: where it is below the checkpoint's folder, if that is not its path.
    kept_at: str = ""

    @property
    def key(self) -> str:
        return self.kept_at or self.path


@dataclass(frozen=True, slots=True)
class About:
    """What a manifest says beside its files."""

    job: str
    saved_at: str
    world: int = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    epoch: int
    attempt: int
    about: About
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def encode(manifest: Manifest) -> bytes:
    """Files come in the order of their paths, so that the same checkpoint has the same manifest."""
    checked(manifest.files)
    facts: dict[str, str | int] = {
        "version": VERSION,
        "epoch": manifest.epoch,
        "attempt": manifest.attempt,
        "job": manifest.about.job,
        "savedAt": manifest.about.saved_at,
        "world": manifest.about.world,
    }
    files = sorted(manifest.files, key=lambda file: file.path)
    # File by file: the facts of all of them at once would take several times the memory of what is written.
    content = b'%s,"files":[%s]}' % (_json(facts)[:-1], b",".join(_json(_facts(file)) for file in files))
    if len(content) > MAX_BYTES:
        raise Refused(f"the manifest would be larger than {MAX_BYTES >> 20} MiB: use fewer files or shorter names")
    return content


def decode(content: bytes, where: str) -> Manifest:
    """The manifest, with every path checked; `where` is for the messages."""
    if len(content) > MAX_BYTES:
        raise BadManifest(f"the manifest of {where} is larger than {MAX_BYTES >> 20} MiB: it is not one of holdfast's")
    try:
        facts = json.loads(content)
        version = facts["version"]
        if version != VERSION or isinstance(version, bool):
            raise BadManifest(_unknown(where, version))
        about = About(job=_text(facts["job"]), saved_at=_text(facts["savedAt"]), world=_number(facts["world"]))
        files = tuple(_file(file) for file in facts["files"])
        found = Manifest(_number(facts["epoch"]), _number(facts["attempt"]), about, files)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadManifest(f"the manifest of {where} can't be read ({type(error).__name__}): it is damaged") from None
    try:
        checked(found.files)
    except Refused as error:
        raise BadManifest(f"the manifest of {where} is refused: {error}") from None
    return found


def checked(files: tuple[File, ...]) -> None:
    """Refuse a set of files that can't be one checkpoint."""
    for file in files:
        check_path(file.path)
        if file.path.startswith(OWN):
            raise Refused(f"the file name {file.path!a} begins with {OWN}, which is holdfast's own: rename it")
        if file.kept_at:
            check_path(file.kept_at, MAX_KEY_BYTES)
    if not files:
        raise Refused("the checkpoint holds no file")
    check_together(file.path for file in files)
    if len({file.key for file in files}) != len(files):
        raise Refused("two files of the checkpoint are kept at one place")


def _json(facts: dict[str, str | int]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()


def _facts(file: File) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"path": file.path, "size": file.size, "sha256": file.sha256}
    return {**facts, "keptAt": file.kept_at} if file.kept_at else facts


def _file(facts: dict[str, Any]) -> File:
    sha256 = _text(facts["sha256"])
    if not SHA256.fullmatch(sha256):
        raise ValueError("not a digest")
    return File(_text(facts["path"]), _number(facts["size"]), sha256, _text(facts.get("keptAt", "")))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SIZE:
        raise TypeError("not a number")
    return value


def _unknown(where: str, version: object) -> str:
    said = f"{version!a}"[:40]
    return f"the manifest of {where} has the version {said}, and this holdfast knows {VERSION}: use a newer holdfast"
