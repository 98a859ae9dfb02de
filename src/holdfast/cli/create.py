"""`holdfast create`: creates namespaces, ConfigMaps and Secrets like kubectl."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import typer

from holdfast.cli.errors import UsageError
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import Session
from holdfast.cli.up import create_object
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import KnownKind

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def configmap_content(files: list[str], literals: list[str]) -> JSON:
    texts, binary = dict[str, str](), dict[str, str]()
    for key, value in _values(files, literals).items():
        try:
            texts[key] = value.decode()
        except UnicodeDecodeError:
            binary[key] = base64.b64encode(value).decode()
    parts = {"data": texts, "binaryData": binary}
    return {field: values for field, values in parts.items() if values}


def secret_content(kind: str, files: list[str], literals: list[str]) -> JSON:
    values = _values(files, literals)
    return {"type": kind, "data": {key: base64.b64encode(value).decode() for key, value in values.items()}}


async def create_named(session: Session, kind: str, name: str, content: JSON) -> int:
    known = find_kind(kind)
    await create_object(session, known, _document(session, known, name, content))
    typer.echo(f"{known.title}/{name} created")
    return 0


def _document(session: Session, known: KnownKind, name: str, content: JSON) -> JSON:
    namespace_field = {"namespace": session.namespace_for(known)} if known.resource.namespaced else {}
    resource = known.resource
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, **namespace_field},
        **content,
    }


def _values(files: list[str], literals: list[str]) -> dict[str, bytes]:
    """All keys and values; raises `UsageError` for an unreadable file or a duplicate key."""
    found: dict[str, bytes] = {}
    for key, value in (*_literals(literals), *_files(files)):
        if key in found:
            raise UsageError(f"the key {key} is given twice")
        found[key] = value
    return found


def _literals(options: list[str]) -> Iterator[tuple[str, bytes]]:
    for number, text in enumerate(options, start=1):
        key, equals, value = text.partition("=")
        if not equals or not key:
            # The message omits the value: it may be a secret.
            raise UsageError(f"--from-literal number {number} is not KEY=VALUE")
        yield key, value.encode(errors="surrogateescape")


def _files(options: list[str]) -> Iterator[tuple[str, bytes]]:
    for text in options:
        key, equals, name = text.rpartition("=")
        path = Path(name)
        if equals and not key:
            raise UsageError(f"--from-file {text} is not [KEY=]PATH")
        try:
            if not path.is_dir():
                yield key or path.name, path.read_bytes()
                continue
            if key:
                raise UsageError(f"--from-file {text}: a folder has no key of its own; write the folder alone")
            members = sorted(each for each in path.iterdir() if each.is_file() and _KEY.fullmatch(each.name))
            yield from ((each.name, each.read_bytes()) for each in members)
        except OSError as error:
            raise UsageError(f"{error.filename or name} can't be read: {error.strerror or error}") from None
