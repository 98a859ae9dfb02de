"""`holdfast validate`: what the API server would say of a manifest, without one."""

import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from holdfast.api.kinds import KINDS, kind_of
from holdfast.api.manifests import Unreadable, documents
from holdfast.api.validation import Refused, admit, subject

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
REFUSED, UNREADABLE = 1, 2


class Finding(Struct, frozen=True):
    """One line of the answer, and the exit code that it calls for."""

    text: str
    code: int = 0


def validate(
    filenames: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="File, folder, or - for standard input. May be given several times."),
    ],
) -> None:
    """Check manifests as the API server would: holdfast validate -f job.yaml"""
    worst = 0
    for finding in (finding for name in filenames for finding in _findings(name)):
        typer.echo(_printable(finding.text), err=finding.code == UNREADABLE)
        worst = max(worst, finding.code)
    raise typer.Exit(worst)


def _findings(name: str) -> Iterator[Finding]:
    try:
        for source, text in _texts(name):
            yield from _checked(source, text)
    except OSError as error:
        yield Finding(f"{error.filename or name}: can't be read: {error.strerror or error}", UNREADABLE)


def _texts(name: str) -> Iterator[tuple[str, bytes]]:
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


def _checked(source: str, text: bytes) -> Iterator[Finding]:
    """A line for every problem of every object, or that it is fine."""
    number = 0
    try:
        for number, document in enumerate(documents(text.decode("utf-8-sig")), start=1):
            for item in _items(document):
                yield from _verdict(f"{source}: document {number}", item)
    except UnicodeDecodeError:
        yield Finding(f"{source}: can't be read: it is not text in UTF-8", UNREADABLE)
    except Unreadable as error:
        yield Finding(f"{source}: document {number + 1}: can't be read as YAML or JSON: {error}", UNREADABLE)
    else:
        if not number:
            yield Finding(f"{source}: holds no object", UNREADABLE)


def _items(document: Any) -> Iterator[Any]:
    """The object itself, or the objects of a List, as kubectl get -o yaml writes them."""
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        yield from document["items"]
    else:
        yield document


def _verdict(place: str, document: Any) -> Iterator[Finding]:
    if not isinstance(document, dict):
        yield Finding(f"{place}: is no object: write apiVersion, kind, metadata and spec", REFUSED)
        return
    name = f"{place}: {subject(document)}"
    stranger = _stranger(document)
    if stranger is not None:
        yield Finding(f"{name} {stranger.text}", stranger.code)
        return
    try:
        admit(document)
    except Refused as refusal:
        yield from (Finding(f"{name}: {cause}", REFUSED) for cause in refusal.causes)
    else:
        yield Finding(f"{name} ok")


def _printable(text: str) -> str:
    """On one line, and without what would command a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _stranger(document: dict[str, Any]) -> Finding | None:
    """What to say of an object that is none of ours, or only nearly."""
    api_version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(api_version, str) or not api_version:
        return Finding("is refused: apiVersion: Required value: write group and version", REFUSED)
    if not isinstance(kind, str) or not kind:
        return Finding("is refused: kind: Required value: write the kind's name", REFUSED)
    if kind_of(api_version, kind):
        return None
    group = api_version.rpartition("/")[0]
    for known in KINDS:
        if (known.group, known.kind) == (group, kind):
            versions = " or ".join(f"{group}/{version}" for version in known.versions)
            return Finding(f"is refused: apiVersion: {api_version} is not served: write {versions}", REFUSED)
    ours = [known.kind for known in KINDS if known.group == group]
    if ours:
        near = get_close_matches(kind.lower(), [name.lower() for name in ours], n=1)
        hint = next(name for name in ours if name.lower() == near[0]) if near else " or ".join(ours)
        return Finding(f"is refused: kind: {group} has no {kind}: write {hint}", REFUSED)
    meant = next((f"; for holdfast's write apiVersion: {k.api_version}" for k in KINDS if k.kind == kind), "")
    return Finding(f"not checked: {api_version} {kind} is no kind of holdfast{meant}")
