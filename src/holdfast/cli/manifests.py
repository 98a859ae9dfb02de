"""Manifests from files, folders and standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.api.manifests import InvalidManifest, documents
from holdfast.cli.failing import UsageError
from holdfast.cluster.protocol import JSON

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")


class Manifest(Struct, frozen=True):
    """One object, and where it was found."""

    place: str
    document: JSON


def read_manifests(names: Iterable[str]) -> list[Manifest]:
    """Every object of every file, or none: what can't be read is found before anything is done."""
    found = [manifest for name in names for manifest in _read(name)]
    if not found:
        raise UsageError("the files hold no object: write apiVersion, kind, metadata and spec")
    return found


def texts(name: str) -> Iterator[tuple[str, bytes]]:
    """The file itself, or every manifest of a folder, each with its name."""
    if name == STDIN:
        yield "standard input", sys.stdin.buffer.read()
        return
    path = Path(name)
    if not path.is_dir():
        yield name, path.read_bytes()
        return
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if not files:
        raise OSError(None, f"the folder holds no {', '.join(SUFFIXES)} file", name)
    for file in files:
        yield str(file), file.read_bytes()


def items(document: Any) -> Iterator[Any]:
    """The object itself, or the objects of a List, as kubectl get -o yaml writes them."""
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        yield from document["items"]
    else:
        yield document


def _read(name: str) -> Iterator[Manifest]:
    try:
        for source, text in texts(name):
            yield from _manifests(source, text)
    except OSError as error:
        raise UsageError(f"{error.filename or name} can't be read: {error.strerror or error}") from None


def _manifests(source: str, text: bytes) -> Iterator[Manifest]:
    try:
        for number, document in enumerate(documents(text.decode("utf-8-sig")), start=1):
            for item in items(document):
                if not isinstance(item, dict):
                    raise UsageError(f"{source}: document {number} is no object: write apiVersion, kind and metadata")
                yield Manifest(f"{source}: document {number}", item)
    except UnicodeDecodeError:
        raise UsageError(f"{source} can't be read: it is not text in UTF-8") from None
    except InvalidManifest as error:
        raise UsageError(f"{source} can't be read as YAML or JSON: {error}") from None
