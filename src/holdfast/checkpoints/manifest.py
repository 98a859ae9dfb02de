"""The manifest of a checkpoint: its files, their sizes and digests. It is written last, and makes it complete."""

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.checkpoints.errors import InvalidCheckpointManifest, UnsafeContent

# Names of checkpoints: every attempt has a folder of its own, and the newest checkpoint of all attempts counts.

ATTEMPT = re.compile(r"attempt-(0|[1-9][0-9]{0,8})")
# The whole name: a folder that is still being written has another name (a dot before it, .tmp or .partial after it). A
# script may pad the number with zeros, so the spelling is retained.
CHECKPOINT = re.compile(r"checkpoint-epoch-(0*[0-9]{1,9})")

# All files of this package, beside or in a checkpoint, begin with this prefix; no file of a training does.
HOLDFAST_PREFIX = ".holdfast-"
MANIFEST = f"{HOLDFAST_PREFIX}manifest.json"
QUARANTINE = "quarantine"


class CheckpointName(NamedTuple):
    """The order of the fields is the order of checkpoints: with equal epochs, the later attempt's is newer."""

    epoch: int
    attempt: int
    folder_name: str

    @property
    def folder(self) -> str:
        """The path of the checkpoint below the job's prefix."""
        return f"attempt-{self.attempt}/{self._checked_leaf}"

    @property
    def quarantined(self) -> str:
        """The path of the checkpoint in quarantine, for damaged checkpoints."""
        return f"{QUARANTINE}/attempt-{self.attempt}-{self._checked_leaf}"

    @property
    def _checked_leaf(self) -> str:
        if not CHECKPOINT.fullmatch(self.folder_name):
            raise UnsafeContent(f"{self.folder_name!a} is not the name of a checkpoint, such as checkpoint-epoch-3")
        return self.folder_name

    def __str__(self) -> str:
        return f"{self.folder_name} of attempt {self.attempt}"


def checkpoint_name(epoch: int, attempt: int) -> CheckpointName:
    return CheckpointName(epoch, attempt, f"checkpoint-epoch-{epoch}")


def parse(attempt: str, folder_name: str) -> CheckpointName | None:
    """The checkpoint with these two path components; None if they do not name a checkpoint."""
    number, epoch = ATTEMPT.fullmatch(attempt), CHECKPOINT.fullmatch(folder_name)
    return CheckpointName(int(epoch[1]), int(number[1]), folder_name) if number and epoch else None


# Which paths a checkpoint may hold. Paths come from scripts and from manifests, and are not trusted.

# Keeps the memory of the sidecar below 80 MiB: it took 72 MiB with 10,000 files, 89 MiB with 20,000.
MAX_FILES = 10_000
# Object stores allow keys of 1,024 bytes: a job's prefix has up to 512, and some are for holdfast's own folders.
MAX_PATH_BYTES = 400
MAX_KEY_BYTES = 450
MAX_NAME_BYTES = 255
# Far more than any framework writes. Without these limits 10,000 paths of 400 bytes could need 195,000 folders.
MAX_FOLDERS = 20_000
MAX_DEPTH = 32


def check_path(path: str, max_bytes: int = MAX_PATH_BYTES) -> None:
    """Refuse a path that would leave the checkpoint's folder, or that some storage can't hold."""
    reason = _path_error(path, max_bytes)
    if reason:
        raise UnsafeContent(f"the file name {_quoted(path)} {reason}: give the file another name")


def check_path_set(paths: Iterable[str]) -> None:
    """Refuse names that are equal on some file system, a file where another path needs a folder, and too many files."""
    seen: dict[str, str] = {}
    for path in paths:
        same = seen.setdefault(_folded(path), path)
        if same != path or len(seen) > MAX_FILES:
            raise UnsafeContent(_conflict_message(path, same) if same != path else _too_many_files_message())
    folders = {folded.rpartition("/")[0] for folded in seen}
    all_folders = set[str]()
    for folder in folders:
        check_depth(f"{folder}/")
        parts = folder.split("/")
        all_folders.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        check_folders(len(all_folders))
        for end in range(1, len(parts) + 1):
            if (file := seen.get("/".join(parts[:end]))) is not None:
                path = next(path for folded, path in seen.items() if folded.startswith(f"{folder}/"))
                raise UnsafeContent(
                    f"{_quoted(file)} is a file, and {_quoted(path)} needs it to be a folder: rename one"
                )


def check_folders(count: int) -> None:
    if count > MAX_FOLDERS:
        raise UnsafeContent(f"there are more than {MAX_FOLDERS} folders in the checkpoint: put more files into each")


def check_depth(folder: str) -> None:
    """Refuse a folder that is nested too deep; its path ends with a slash."""
    if folder.count("/") > MAX_DEPTH:
        raise UnsafeContent(f"the folder {_quoted(folder)} is more than {MAX_DEPTH} folders deep: nest them less")


def _path_error(path: str, max_bytes: int) -> str | None:
    parts = path.split("/")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    if path.startswith("/"):
        return "is absolute"
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty part, '.' or '..'"
    if "\\" in path:
        return "holds a backslash, which Azure takes for a '/'"
    if not path.isprintable() and any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in path
    ):
        return "holds a control character"
    if max(sizes) > MAX_NAME_BYTES or sum(sizes) + len(parts) > max_bytes:
        return f"is longer than {max_bytes} bytes, or a part of it longer than {MAX_NAME_BYTES}"
    return None


def _folded(path: str) -> str:
    if path.isascii():
        folded = path.lower()
        return path if folded == path else folded  # one string takes less memory than two
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _conflict_message(path: str, same: str) -> str:
    return f"the file names {_quoted(same)} and {_quoted(path)} are one name for some file systems: rename one"


def _too_many_files_message() -> str:
    return f"there are more than {MAX_FILES} files in the checkpoint: pack them into fewer, larger ones"


def _quoted(path: str) -> str:
    text = ascii(path)
    return text if len(text) <= 120 else f"{text[:100]}…'"


VERSION = 1
# The entry of a file takes 120 bytes and its path.
MAX_BYTES = 4 << 20
MAX_SIZE = 1 << 62
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size: int
    sha256: str
    # In an object store: the key below the checkpoint's folder, if it differs from the path.
    stored_at: str = ""

    @property
    def key(self) -> str:
        return self.stored_at or self.path


@dataclass(frozen=True, slots=True)
class SaveInfo:
    """Which job has saved a checkpoint, and when. `job` is the uid of the job `namespace`/`name`."""

    job: str
    saved_at: str
    world: int = 1
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """`step` is how many batches of the epoch are done; None: all batches, or the program does not report it.

    save: with several shards, the id of their save: shards of two saves never make one checkpoint.
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


def encode(manifest: CheckpointManifest) -> bytes:
    """Encode the manifest. Files are sorted by path, so that the same checkpoint has the same manifest."""
    validated_files(manifest.files)
    fields: dict[str, object] = {
        "version": VERSION,
        "epoch": manifest.epoch,
        "attempt": manifest.attempt,
        "job": manifest.about.job,
        "savedAt": manifest.about.saved_at,
        "world": manifest.about.world,
        **_optional(manifest),
    }
    files = sorted(manifest.files, key=lambda file: file.path)
    # File by file: the entries of all files at once would take several times the memory of the manifest.
    content = b'%s,"files":[%s]}' % (_json(fields)[:-1], b",".join(_json(_file_fields(file)) for file in files))
    if len(content) > MAX_BYTES:
        raise UnsafeContent(
            f"the manifest would be larger than {MAX_BYTES >> 20} MiB: use fewer files or shorter names"
        )
    return content


def decode(content: bytes, where: str) -> CheckpointManifest:
    """The manifest, with every path checked; `where` is for error messages."""
    if len(content) > MAX_BYTES:
        raise InvalidCheckpointManifest(
            f"the manifest of {where} is larger than {MAX_BYTES >> 20} MiB: it is not one of holdfast's"
        )
    try:
        fields = json.loads(content)
        version = fields["version"]
        if version != VERSION or isinstance(version, bool):
            raise InvalidCheckpointManifest(_unknown_version_message(where, version))
        about = SaveInfo(
            job=_text(fields["job"]),
            saved_at=_text(fields["savedAt"]),
            world=_number(fields["world"]),
            namespace=_text(fields.get("namespace", "")),
            name=_text(fields.get("name", "")),
        )
        files = tuple(_file(file) for file in fields["files"])
        step = None if fields.get("step") is None else _number(fields["step"])
        metrics = _metrics(fields.get("metrics", {}))
        save = _text(fields.get("save", ""))
        found = CheckpointManifest(
            _number(fields["epoch"]), _number(fields["attempt"]), about, files, step, metrics, save
        )
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


def _json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _optional(manifest: CheckpointManifest) -> dict[str, object]:
    """The fields that are omitted where they are not known, since not every program reports them."""
    about = manifest.about
    fields: dict[str, object] = {"namespace": about.namespace, "name": about.name, "save": manifest.save}
    fields = {name: value for name, value in fields.items() if value}
    if manifest.step is not None:
        fields["step"] = manifest.step
    if metrics := {name: value for name, value in manifest.metrics.items() if math.isfinite(value)}:
        fields["metrics"] = metrics
    return fields


def _file_fields(file: File) -> dict[str, object]:
    fields: dict[str, object] = {"path": file.path, "size": file.size, "sha256": file.sha256}
    return {**fields, "keptAt": file.stored_at} if file.stored_at else fields


def _file(fields: dict[str, Any]) -> File:
    sha256 = _text(fields["sha256"])
    if not SHA256.fullmatch(sha256):
        raise ValueError("not a digest")
    return File(_text(fields["path"]), _number(fields["size"]), sha256, _text(fields.get("keptAt", "")))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SIZE:
        raise TypeError("not a number")
    return value


def _metrics(value: object) -> dict[str, float]:
    """JSON has no NaN, but Python's parser accepts it: such a number is dropped."""
    if not isinstance(value, dict):
        raise TypeError("not an object")
    if not all(type(number) in (int, float) for number in value.values()):
        raise TypeError("not a number")
    numbers = {name: float(number) for name, number in value.items()}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _unknown_version_message(where: str, version: object) -> str:
    shown = f"{version!a}"[:40]
    return f"the manifest of {where} has the version {shown}, and this holdfast knows {VERSION}: use a newer holdfast"
