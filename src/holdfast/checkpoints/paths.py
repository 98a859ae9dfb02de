"""Which paths a checkpoint may hold. They come from scripts and from manifests, and may name anything at all."""

import unicodedata
from collections.abc import Iterable

from holdfast.checkpoints.errors import UnsafeContent

# What a sidecar can hold of a checkpoint and stay below 80 MiB: it took 72 MiB with 10,000 files, 89 with 20,000.
MAX_FILES = 10_000
# Object stores allow keys of 1,024 bytes: a job's prefix has up to 512, and some are for holdfast's own folders.
MAX_PATH_BYTES = 400
MAX_KEY_BYTES = 450
MAX_NAME_BYTES = 255
# Far more than any framework writes. Without them 10,000 paths of 400 bytes would be 195,000 folders to make.
MAX_FOLDERS = 20_000
MAX_DEPTH = 32


def check_path(path: str, max_bytes: int = MAX_PATH_BYTES) -> None:
    """Refuse what would leave the checkpoint's folder, or what some storage can't hold."""
    reason = _path_error(path, max_bytes)
    if reason:
        raise UnsafeContent(f"the file name {_quoted(path)} {reason}: give the file another name")


def check_path_set(paths: Iterable[str]) -> None:
    """Refuse names that some file system takes for one, a file where another needs a folder, and too many of them."""
    seen: dict[str, str] = {}
    for path in paths:
        same = seen.setdefault(_folded(path), path)
        if same != path or len(seen) > MAX_FILES:
            raise UnsafeContent(_conflict_error(path, same) if same != path else _too_many())
    folders = {folded.rpartition("/")[0] for folded in seen}
    every = set[str]()
    for folder in folders:
        check_depth(f"{folder}/")
        parts = folder.split("/")
        every.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        check_folders(len(every))
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
    """Of a folder's path, which ends with a slash."""
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
    if not path.isprintable() and any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in path):
        return "holds a control character"
    if max(sizes) > MAX_NAME_BYTES or sum(sizes) + len(parts) > max_bytes:
        return f"is longer than {max_bytes} bytes, or a part of it longer than {MAX_NAME_BYTES}"
    return None


def _folded(path: str) -> str:
    if path.isascii():
        folded = path.lower()
        return path if folded == path else folded  # one text takes less memory than two
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _conflict_error(path: str, same: str) -> str:
    return f"the file names {_quoted(same)} and {_quoted(path)} are one name for some file systems: rename one"


def _too_many() -> str:
    return f"there are more than {MAX_FILES} files in the checkpoint: pack them into fewer, larger ones"


def _quoted(path: str) -> str:
    text = ascii(path)
    return text if len(text) <= 120 else f"{text[:100]}…'"
