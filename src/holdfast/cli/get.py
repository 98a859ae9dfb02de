"""`holdfast get`: objects as a table, or whole."""

from collections.abc import Iterable
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated

import typer
from msgspec import Struct

from holdfast.cli.documents import as_list, to_json, to_yaml, without_server_fields
from holdfast.cli.failing import FAILED, UsageError, print_error
from holdfast.cli.following import by_name, follow
from holdfast.cli.naming import ResourceArgs, parse_resources
from holdfast.cli.tables import Table, wants_colours
from holdfast.cli.target import ClusterOptions, ContextOption, KubeconfigOption, NamespaceOption, Session, run
from holdfast.cluster.errors import NotFound
from holdfast.cluster.known import KnownKind
from holdfast.cluster.protocol import JSON, Change, Listing


class Output(StrEnum):
    TABLE = ""
    WIDE = "wide"
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


class Options(Struct, frozen=True, kw_only=True):
    output: Output
    all_namespaces: bool
    selector: str
    headers: bool

    def table(self, known: KnownKind, *, with_kind: bool = False) -> Table:
        return Table(
            known,
            wide=self.output is Output.WIDE,
            with_namespace=self.all_namespaces,
            with_kind=with_kind,
            coloured=wants_colours(),
        )


class FetchedKind(Struct, frozen=True):
    """The objects of one kind."""

    known: KnownKind
    documents: list[JSON]


def get(
    what: Annotated[
        list[str] | None, typer.Argument(help="KIND, KIND NAME…, or KIND/NAME…", metavar="KIND[/NAME]")
    ] = None,
    namespace: NamespaceOption = "",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of every namespace.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="wide, yaml, json or name.")] = Output.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on and show every change.")] = False,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Only those with these labels.")] = "",
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Without the line of column names.")] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show objects: holdfast get tj, holdfast get pods -o wide, holdfast get tj/mnist -o yaml"""
    options = Options(output=output, all_namespaces=all_namespaces, selector=selector, headers=not no_headers)

    async def command(session: Session) -> int:
        wanted = parse_resources(what or [])
        if not watch:
            return await _get(session, wanted, options)
        if len(wanted) > 1 or len(wanted[0].names) > 1:
            raise UsageError("with --watch, name one kind, and at most one object of it")
        return await _watch(session, wanted[0], options)

    run(ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace), command)


async def _get(session: Session, wanted: list[ResourceArgs], options: Options) -> int:
    code = 0
    found: list[FetchedKind] = []
    for each in wanted:
        documents, complete = await _documents(session, each, options)
        found.append(FetchedKind(each.known, documents))
        code = code if complete else FAILED
    everything = [document for each in found for document in each.documents]
    is_whole = options.output in (Output.YAML, Output.JSON)
    if not everything and (code or not is_whole):
        if not code:
            typer.echo(_none_found_message(session, found, options), err=True)
    elif is_whole:
        is_single = len(wanted) == 1 and len(wanted[0].names) == 1
        whole = everything[0] if is_single else as_list(everything)
        typer.echo(to_yaml(whole) if options.output is Output.YAML else to_json(whole))
    elif options.output is Output.NAME:
        typer.echo("\n".join(_names(found)))
    else:
        typer.echo("\n\n".join(_tables(session, found, options)))
    return code


async def _documents(session: Session, wanted: ResourceArgs, options: Options) -> tuple[list[JSON], bool]:
    """What there is, and whether it is all that was asked for."""
    if wanted.names and options.all_namespaces:
        raise UsageError("an object of that name may be in every namespace: leave out the name, or name a namespace")
    resource = wanted.known.resource
    if not wanted.names:
        namespace = "" if options.all_namespaces else session.namespace_for(wanted.known)
        try:
            listing = await session.cluster.list(resource, namespace=namespace, labels=options.selector)
        except NotFound:
            if wanted.by_category:  # a kind that this cluster does not have
                return [], True
            raise
        ordered = sorted(listing.items, key=lambda each: each.metadata.key)
        return [without_server_fields(each.document) for each in ordered], True
    documents = []
    for name in wanted.names:
        try:
            documents.append(
                without_server_fields((await session.get(wanted.known, session.key(wanted.known, name))).document)
            )
        except NotFound as error:
            print_error(str(error))
    return documents, len(documents) == len(wanted.names)


async def _watch(session: Session, wanted: ResourceArgs, options: Options) -> int:
    known = wanted.known
    if wanted.names:
        await session.get(known, session.key(known, wanted.names[0]))
    table = options.table(known)
    headers = options.headers
    steps = follow(
        session.cluster,
        known.resource,
        namespace="" if options.all_namespaces else session.namespace_for(known),
        labels=options.selector,
        fields=by_name(wanted.names[0]) if wanted.names else "",
    )
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, Listing):
                documents = [each.document for each in step.items]
            elif step.object is None or (step.change is Change.DELETED and options.output is Output.NAME):
                continue
            else:
                documents = [step.object.document]
            for text in _changes(session, known, documents, options, table, headers=headers):
                typer.echo(text)
            headers = headers and not documents
    return 0


def _changes(
    session: Session, known: KnownKind, documents: list[JSON], options: Options, table: Table, *, headers: bool
) -> Iterable[str]:
    match options.output:
        case Output.YAML:
            return [f"---\n{to_yaml(without_server_fields(document))}" for document in documents]
        case Output.JSON:
            return [to_json(without_server_fields(document)) for document in documents]
        case Output.NAME:
            return _names([FetchedKind(known, documents)])
    rows = [table.row(document, session.now()) for document in documents]
    return table.lines(rows, headers=headers) if rows else []


def _tables(session: Session, found: list[FetchedKind], options: Options) -> Iterable[str]:
    several = len(found) > 1
    for each in found:
        if each.documents:
            table = options.table(each.known, with_kind=several)
            rows = [table.row(document, session.now()) for document in each.documents]
            yield "\n".join(table.lines(rows, headers=options.headers))


def _names(found: list[FetchedKind]) -> list[str]:
    return [f"{each.known.title}/{document['metadata']['name']}" for each in found for document in each.documents]


def _none_found_message(session: Session, found: list[FetchedKind], options: Options) -> str:
    namespaced = any(each.known.resource.namespaced for each in found)
    if options.all_namespaces or not namespaced:
        return "No resources found"
    return f"No resources found in {session.namespace} namespace."
