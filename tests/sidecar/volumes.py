"""A checkpoint volume as a job's attempts leave it."""

from collections.abc import Mapping
from pathlib import Path

MODEL = {"model.bin": "weights", "state/position.json": "{}"}


def checkpoint(root: Path, attempt: int, name: str, files: Mapping[str, str] = MODEL) -> Path:
    """A folder with these files, in the folder of an attempt."""
    folder = root / f"attempt-{attempt}" / name
    folder.mkdir(parents=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


def tree(folder: Path) -> dict[str, str]:
    """Every file and link below it, by its path: what is in it, or where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
    return found
