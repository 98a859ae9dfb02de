"""Arguments of commands: kinds and names such as pods, tj/mnist, job a b, holdfast, and manifest files."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.api.advice import did_you_mean
from holdfast.api.kinds import KINDS
from holdfast.api.manifests import InvalidManifest, documents
from holdfast.cli.errors import UsageError
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import KNOWN, KnownKind


class ResourceArgs(Struct, frozen=True):
    """Objects of one kind: the named objects, or all. Kinds of a category may be missing in the cluster."""

    known: KnownKind
    names: tuple[str, ...] = ()
    by_category: bool = False


def this_command() -> str:
    """The command that starts holdfast, to print in hints: holdfast may not be on the PATH."""
    program = sys.argv[0]
    if shutil.which("holdfast") or not program:
        return "holdfast"
    if Path(program).name == "__main__.py":
        return "python -m holdfast"
    return os.path.relpath(program) if Path(program).is_relative_to(Path.cwd()) else program


def parse_resources(arguments: Sequence[str]) -> list[ResourceArgs]:
    """Parse KIND, KIND,KIND, KIND NAME…, or KIND/NAME…"""
    if not arguments:
        raise UsageError("say which kind: for example tj, pods or holdfast")
    if any("/" in argument for argument in arguments):
        return [_parse_one(argument) for argument in arguments]
    kinds, *names = arguments
    resources = [each for kind in kinds.split(",") for each in _of_kind(kind)]
    if names and len(resources) > 1:
        raise UsageError(f"{kinds} are several kinds: name objects of one kind, or write KIND/NAME for each")
    return [ResourceArgs(each.known, tuple(dict.fromkeys(names)), each.by_category) for each in resources]


def parse_named_resources(arguments: Sequence[str]) -> list[ResourceArgs]:
    """Like `parse_resources`, but every object must be named."""
    resources = parse_resources(arguments)
    if not all(each.names for each in resources):
        raise UsageError(f"name the object: {arguments[0]}/NAME or {arguments[0]} NAME")
    return resources


def find_kind(word: str) -> KnownKind:
    """Find a kind by singular, plural or short name, with or without group; raises `UsageError` with near matches."""
    found = _find(word)
    if found is None:
        raise _unknown(word)
    return found


def kind_of(document: JSON) -> KnownKind:
    """The kind of a manifest, by apiVersion and kind."""
    api_version, kind = document.get("apiVersion"), document.get("kind")
    group, _, version = str(api_version).rpartition("/")
    for known in KNOWN:
        resource = known.resource
        if (resource.group, resource.kind) == (group, kind) and version in _versions(known):
            return replace(known, resource=replace(resource, version=version))
    raise UsageError(unknown_kind(api_version, kind))


def unknown_kind(api_version: object, kind: object) -> str:
    """The error message for an unknown apiVersion and kind."""
    if not isinstance(kind, str) or not kind:
        return f"kind is {'no text' if kind else 'missing'}: write a kind, such as kind: TrainingJob"
    same = [known for known in KNOWN if known.resource.kind == kind]
    if not isinstance(api_version, str) or not api_version:
        example = same[0].resource.api_version if same else KNOWN[0].resource.api_version
        return f"apiVersion is {'no text' if api_version else 'missing'}: write apiVersion: {example}"
    group = api_version.rpartition("/")[0]
    for known in same:
        served = " or ".join(f"{group}/{version}".lstrip("/") for version in _versions(known))
        if known.resource.group == group:
            return f"apiVersion {api_version} is not served: write {served}"
    if same:
        return f"{api_version} has no kind {kind}: write apiVersion: {same[0].resource.api_version}"
    in_group = [known.resource.kind for known in KNOWN if known.resource.group == group]
    near = did_you_mean(kind, in_group or [known.resource.kind for known in KNOWN])
    if near or in_group:
        return f"{api_version} has no kind {kind}: {f'did you mean {near}?' if near else f'it has {_joined(in_group)}'}"
    return f"{api_version} {kind} is no kind that holdfast knows: use kubectl for it"


def _joined(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _versions(known: KnownKind) -> tuple[str, ...]:
    resource = known.resource
    served = [kind.versions for kind in KINDS if (kind.group, kind.kind) == (resource.group, resource.kind)]
    return served[0] if served else (resource.version,)


def _parse_one(argument: str) -> ResourceArgs:
    kind, _, name = argument.partition("/")
    if not kind or not name or "/" in name:
        raise UsageError(f"{argument} is not KIND/NAME; with one object written so, write all so")
    return ResourceArgs(find_kind(kind), (name,))


def _of_kind(word: str) -> list[ResourceArgs]:
    if known := _find(word):
        return [ResourceArgs(known)]
    members = [ResourceArgs(each, (), True) for each in KNOWN if word.lower() in each.categories]
    if not members:
        raise _unknown(word)
    return members


def _find(word: str) -> KnownKind | None:
    name, _, group = word.lower().partition(".")
    for known in KNOWN:
        if name in known.names and group in ("", known.resource.group):
            return known
    return None


def _unknown(word: str) -> UsageError:
    names = [name for known in KNOWN for name in known.names]
    near = get_close_matches(word.lower(), names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(k.resource.plural for k in KNOWN)}"
    return UsageError(f"there is no kind {word!r}: {hint}")


# Manifests from files, folders and standard input.

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")


class ManifestDocument(Struct, frozen=True):
    """One object, and its file and document number."""

    location: str
    document: JSON


def read_manifests(names: Iterable[str]) -> list[ManifestDocument]:
    """All objects of all files; an unreadable file raises before any object is processed."""
    found = [manifest for name in names for manifest in _read(name)]
    if not found:
        raise UsageError("the files hold no object: write apiVersion, kind, metadata and spec")
    return found


def texts(name: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of the file, or of every manifest of a folder."""
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
    """The object itself, or the objects of a List, as in the output of kubectl get -o yaml."""
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        yield from document["items"]
    else:
        yield document


def _read(name: str) -> Iterator[ManifestDocument]:
    try:
        for source, text in texts(name):
            yield from _manifests(source, text)
    except OSError as error:
        raise UsageError(f"{error.filename or name} can't be read: {error.strerror or error}") from None


def _manifests(source: str, text: bytes) -> Iterator[ManifestDocument]:
    try:
        for number, document in enumerate(documents(text.decode("utf-8-sig")), start=1):
            for item in items(document):
                if not isinstance(item, dict):
                    raise UsageError(f"{source}: document {number} is no object: write apiVersion, kind and metadata")
                yield ManifestDocument(f"{source}: document {number}", item)
    except UnicodeDecodeError:
        raise UsageError(f"{source} can't be read: it is not text in UTF-8") from None
    except InvalidManifest as error:
        raise UsageError(f"{source} can't be read as YAML or JSON: {error}") from None
