"""The manifest of a checkpoint: its files, their sizes and digests. It is written last, and makes a checkpoint one."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoints.errors import InvalidCheckpointManifest, UnsafeContent
from holdfast.checkpoints.names import HOLDFAST_PREFIX
from holdfast.checkpoints.paths import MAX_KEY_BYTES, check_path, check_path_set

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
    stored_at: str = ""

    @property
    def key(self) -> str:
        return self.stored_at or self.path


@dataclass(frozen=True, slots=True)
class SaveInfo:
    """Who has saved a checkpoint, and when. `job` is the uid of the job `namespace`/`name`."""

    job: str
    saved_at: str
    world: int = 1
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`step` is how many batches of the epoch are done; None: all of them, or the program does not say.

    save: of several shards, which save they are of: those of two saves never make one checkpoint.
    """

    epoch: int
    attempt: int
    about: SaveInfo
    files: tuple[File, ...]
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    save: str = ""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def encode(manifest: Manifest) -> bytes:
    """Files come in the order of their paths, so that the same checkpoint has the same manifest."""
    validated_files(manifest.files)
    facts: dict[str, object] = {
        "version": VERSION,
        "epoch": manifest.epoch,
        "attempt": manifest.attempt,
        "job": manifest.about.job,
        "savedAt": manifest.about.saved_at,
        "world": manifest.about.world,
        **_optional(manifest),
    }
    files = sorted(manifest.files, key=lambda file: file.path)
    # File by file: the facts of all of them at once would take several times the memory of what is written.
    content = b'%s,"files":[%s]}' % (_json(facts)[:-1], b",".join(_json(_facts(file)) for file in files))
    if len(content) > MAX_BYTES:
        raise UnsafeContent(
            f"the manifest would be larger than {MAX_BYTES >> 20} MiB: use fewer files or shorter names"
        )
    return content


def decode(content: bytes, where: str) -> Manifest:
    """The manifest, with every path checked; `where` is for the messages."""
    if len(content) > MAX_BYTES:
        raise InvalidCheckpointManifest(
            f"the manifest of {where} is larger than {MAX_BYTES >> 20} MiB: it is not one of holdfast's"
        )
    try:
        facts = json.loads(content)
        version = facts["version"]
        if version != VERSION or isinstance(version, bool):
            raise InvalidCheckpointManifest(_unknown(where, version))
        about = SaveInfo(
            job=_text(facts["job"]),
            saved_at=_text(facts["savedAt"]),
            world=_number(facts["world"]),
            namespace=_text(facts.get("namespace", "")),
            name=_text(facts.get("name", "")),
        )
        files = tuple(_file(file) for file in facts["files"])
        step = None if facts.get("step") is None else _number(facts["step"])
        metrics = _metrics(facts.get("metrics", {}))
        save = _text(facts.get("save", ""))
        found = Manifest(_number(facts["epoch"]), _number(facts["attempt"]), about, files, step, metrics, save)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidCheckpointManifest(
            f"the manifest of {where} can't be read ({type(error).__name__}): it is damaged"
        ) from None
    try:
        validated_files(found.files)
    except UnsafeContent as error:
        raise InvalidCheckpointManifest(f"the manifest of {where} is refused: {error}") from None
    return found


def validated_files(files: tuple[File, ...]) -> None:
    """Refuse a set of files that can't be one checkpoint."""
    for file in files:
        check_path(file.path)
        if file.path.startswith(HOLDFAST_PREFIX):
            raise UnsafeContent(
                f"the file name {file.path!a} begins with {HOLDFAST_PREFIX}, which is holdfast's own: rename it"
            )
        if file.stored_at:
            check_path(file.stored_at, MAX_KEY_BYTES)
    if not files:
        raise UnsafeContent("the checkpoint holds no file")
    check_path_set(file.path for file in files)
    if len({file.key for file in files}) != len(files):
        raise UnsafeContent("two files of the checkpoint are kept at one place")


def _json(facts: Mapping[str, object]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()


def _optional(manifest: Manifest) -> dict[str, object]:
    """What is left out where it is not known, as in manifests of programs that do not say it."""
    about = manifest.about
    facts: dict[str, object] = {"namespace": about.namespace, "name": about.name, "save": manifest.save}
    facts = {name: value for name, value in facts.items() if value}
    if manifest.step is not None:
        facts["step"] = manifest.step
    if metrics := {name: value for name, value in manifest.metrics.items() if math.isfinite(value)}:
        facts["metrics"] = metrics
    return facts


def _facts(file: File) -> dict[str, object]:
    facts: dict[str, object] = {"path": file.path, "size": file.size, "sha256": file.sha256}
    return {**facts, "keptAt": file.stored_at} if file.stored_at else facts


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


def _metrics(value: object) -> dict[str, float]:
    """JSON has no NaN, and Python reads it all the same: such a number is left out."""
    if not isinstance(value, dict):
        raise TypeError("not an object")
    if not all(type(number) in (int, float) for number in value.values()):
        raise TypeError("not a number")
    numbers = {name: float(number) for name, number in value.items()}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _unknown(where: str, version: object) -> str:
    said = f"{version!a}"[:40]
    return f"the manifest of {where} has the version {said}, and this holdfast knows {VERSION}: use a newer holdfast"
