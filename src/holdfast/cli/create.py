"""`holdfast create`: creates namespaces, ConfigMaps and Secrets like kubectl."""

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from holdfast.cli.local_cluster import create_object
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import (
    ClusterOptions,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Session,
    UsageError,
    run,
)
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import KnownKind

NameArgument: TypeAlias = Annotated[str, typer.Argument(help="The object's name.", metavar="NAME")]
LiteralOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--from-literal", help="A key and its value. May be given several times.", metavar="KEY=VALUE"),
]
FileOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--from-file",
        help="A file, under its own name or KEY; or a folder, every file of which becomes a key.",
        metavar="[KEY=]PATH",
    ),
]
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")

create = typer.Typer(name="create", help="Create namespaces, ConfigMaps and Secrets.", no_args_is_help=True)
_secret = typer.Typer(name="secret", help="Create Secrets.", no_args_is_help=True)
create.add_typer(_secret)


@create.command()
def namespace(name: NameArgument, kubeconfig: KubeconfigOption = None, context: ContextOption = "") -> None:
    """Create a namespace: holdfast create namespace ml-training"""
    _create(ClusterOptions(kubeconfig=kubeconfig, context=context), "namespace", name, dict)


@create.command()
def configmap(
    name: NameArgument,
    from_file: FileOption = None,
    from_literal: LiteralOption = None,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Create a ConfigMap: holdfast create configmap scripts --from-file train.py"""

    def content() -> JSON:
        texts, binary = dict[str, str](), dict[str, str]()
        for key, value in _values(from_file or [], from_literal or []).items():
            try:
                texts[key] = value.decode()
            except UnicodeDecodeError:
                binary[key] = base64.b64encode(value).decode()
        parts = {"data": texts, "binaryData": binary}
        return {field: values for field, values in parts.items() if values}

    _create(ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace), "configmap", name, content)


@_secret.command()
def generic(
    name: NameArgument,
    from_file: FileOption = None,
    from_literal: LiteralOption = None,
    kind: Annotated[str, typer.Option("--type", help="The Secret's type.")] = "Opaque",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Create a Secret: holdfast create secret generic aws-credentials --from-file AWS_SECRET_ACCESS_KEY=key.txt"""

    def content() -> JSON:
        values = _values(from_file or [], from_literal or [])
        return {"type": kind, "data": {key: base64.b64encode(value).decode() for key, value in values.items()}}

    _create(ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace), "secret", name, content)


def _create(choice: ClusterOptions, kind: str, name: str, content: Callable[[], JSON]) -> None:
    async def command(session: Session) -> int:
        known = find_kind(kind)
        await create_object(session, known, _document(session, known, name, content()))
        typer.echo(f"{known.title}/{name} created")
        return 0

    run(choice, command)


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
