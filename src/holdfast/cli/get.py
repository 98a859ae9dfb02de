"""`holdfast get`: objects as a table, or as YAML and JSON."""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from datetime import datetime

import typer
import yaml
from msgspec import Struct

from holdfast.cli.errors import FAILED, UsageError, print_error, printable
from holdfast.cli.options import OutputFormat
from holdfast.cli.resource_args import ResourceArgs, parse_resources
from holdfast.cli.session import Session, by_name, follow
from holdfast.cluster.errors import NotFound
from holdfast.cluster.printing.columns import NAME, TableColumn
from holdfast.cluster.protocol import JSON, Change, Listing
from holdfast.cluster.resources import KnownKind

# Tables in the format of kubectl: columns three spaces apart, colours only on a terminal.

GAP = "   "
_COLOURED = ("STATE", "STATUS", "PHASE")
_COLOURS = {
    typer.colors.GREEN: ("Completed", "Complete", "Succeeded", "Ready", "Active", "Bound"),
    typer.colors.CYAN: ("Running", "Initializing", "Scheduled", "Scheduling"),
    typer.colors.YELLOW: ("Pending", "Restarting", "Suspended", "Terminating"),
    typer.colors.RED: ("Failed", "Error", "OOMKilled", "NotReady", "CrashLoopBackOff"),
}
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}


class Table:
    """Rows of one kind. The table remembers its column widths, so that later rows of a watch stay aligned."""

    def __init__(
        self,
        known: KnownKind,
        *,
        wide: bool = False,
        with_namespace: bool = False,
        with_kind: bool = False,
        coloured: bool = False,
    ) -> None:
        self._columns = [column for column in known.columns if wide or not column.wide]
        self._prefix = f"{known.title}/" if with_kind else ""
        self._with_namespace = with_namespace and known.resource.namespaced
        self._coloured = coloured
        self._widths: list[int] = []

    @property
    def headers(self) -> list[str]:
        names = [column.name for column in self._columns]
        return ["NAMESPACE", *names] if self._with_namespace else names

    def row(self, document: JSON, now: datetime) -> list[str]:
        cells = [self._cell(column, document, now) for column in self._columns]
        return [document["metadata"].get("namespace", ""), *cells] if self._with_namespace else cells

    def lines(self, rows: Iterable[Sequence[str]], *, headers: bool = True) -> list[str]:
        whole = [self.headers, *rows] if headers else list(rows)
        columns = range(len(self.headers))
        known = self._widths or [0] * len(columns)
        self._widths = [max([known[column], *(len(row[column]) for row in whole)]) for column in columns]
        lines = [self._line(row, plain=headers and number == 0) for number, row in enumerate(whole)]
        return [line.rstrip() for line in lines]

    def _cell(self, column: TableColumn, document: JSON, now: datetime) -> str:
        value = column.show(document, now)
        text = "" if value is None else printable(four_digits(value) if isinstance(value, float) else str(value))
        return f"{self._prefix}{text}" if column is NAME else text

    def _line(self, row: Sequence[str], *, plain: bool) -> str:
        padded = [cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)]
        if self._coloured and not plain:
            padded = [self._colour(name, cell) for name, cell in zip(self.headers, padded, strict=True)]
        return GAP.join(padded)

    @staticmethod
    def _colour(header: str, cell: str) -> str:
        colour = _COLOUR_OF.get(cell.strip()) if header in _COLOURED else None
        return typer.style(cell, fg=colour) if colour else cell


def four_digits(value: float) -> str:
    """A measured number with four digits, such as a loss: 0.2275; -o yaml has all digits."""
    return f"{value:.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.4g}"


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Rows as aligned text columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return [
        indent + GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def wants_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


# Whole objects as YAML and JSON, with the order and quoting of kubectl.


def without_server_fields(document: JSON) -> JSON:
    """The document without managedFields, which only the server needs."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": metadata}


def as_list(documents: Sequence[JSON]) -> JSON:
    return {"apiVersion": "v1", "items": list(documents), "kind": "List", "metadata": {"resourceVersion": ""}}


def to_json(document: JSON) -> str:
    return json.dumps(document, indent=4, sort_keys=True, ensure_ascii=False)


def to_yaml(document: JSON) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n")


def to_flow(document: JSON) -> str:
    """YAML in flow style on one line, to copy into a manifest."""
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, width=float("inf"), allow_unicode=True, default_flow_style=True
    )
    return text.strip()


class _Dumper(yaml.SafeDumper):
    """Multi-line strings as blocks, and quotes around strings that another parser would take for numbers."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def choose_scalar_style(self) -> str:
        style: str = super().choose_scalar_style()
        return '"' if style == "'" else style


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A block can't contain characters that need escapes, nor a line that ends with a space.
    block = "\n" in text and not re.search(r"[^\n\x20-\x7e\xa0-\ud7ff]| \n| \Z", text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if block else None)


_Dumper.add_representer(str, _text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)\Z"),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"0o[0-7]+\Z"), ["0"])
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:y|Y|n|N)\Z"), list("yYnN"))


class GetOptions(Struct, frozen=True, kw_only=True):
    output: OutputFormat
    all_namespaces: bool
    selector: str
    headers: bool

    def table(self, known: KnownKind, *, with_kind: bool = False) -> Table:
        return Table(
            known,
            wide=self.output is OutputFormat.WIDE,
            with_namespace=self.all_namespaces,
            with_kind=with_kind,
            coloured=wants_colours(),
        )


class FetchedKind(Struct, frozen=True):
    """The fetched objects of one kind."""

    known: KnownKind
    documents: list[JSON]


async def get_objects(session: Session, what: Sequence[str], options: GetOptions) -> int:
    wanted = parse_resources(what)
    code = 0
    found: list[FetchedKind] = []
    for each in wanted:
        documents, complete = await _documents(session, each, options)
        found.append(FetchedKind(each.known, documents))
        code = code if complete else FAILED
    everything = [document for each in found for document in each.documents]
    is_whole = options.output in (OutputFormat.YAML, OutputFormat.JSON)
    if not everything and (code or not is_whole):
        if not code:
            typer.echo(_none_found_message(session, found, options), err=True)
    elif is_whole:
        is_single = len(wanted) == 1 and len(wanted[0].names) == 1
        whole = everything[0] if is_single else as_list(everything)
        typer.echo(to_yaml(whole) if options.output is OutputFormat.YAML else to_json(whole))
    elif options.output is OutputFormat.NAME:
        typer.echo("\n".join(_names(found)))
    else:
        typer.echo("\n\n".join(_tables(session, found, options)))
    return code


async def _documents(session: Session, wanted: ResourceArgs, options: GetOptions) -> tuple[list[JSON], bool]:
    """The objects that exist, and whether these are all requested objects."""
    if wanted.names and options.all_namespaces:
        raise UsageError("an object of that name may be in every namespace: leave out the name, or name a namespace")
    resource = wanted.known.resource
    if not wanted.names:
        namespace = "" if options.all_namespaces else session.namespace_for(wanted.known)
        try:
            listing = await session.cluster.list(resource, namespace=namespace, labels=options.selector)
        except NotFound:
            if wanted.by_category:  # the cluster does not have this kind
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


async def watch_objects(session: Session, what: Sequence[str], options: GetOptions) -> int:
    wanted, *others = parse_resources(what)
    if others or len(wanted.names) > 1:
        raise UsageError("with --watch, name one kind, and at most one object of it")
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
            elif step.object is None or (step.change is Change.DELETED and options.output is OutputFormat.NAME):
                continue
            else:
                documents = [step.object.document]
            for text in _changes(session, known, documents, options, table, headers=headers):
                typer.echo(text)
            headers = headers and not documents
    return 0


def _changes(
    session: Session, known: KnownKind, documents: list[JSON], options: GetOptions, table: Table, *, headers: bool
) -> Iterable[str]:
    match options.output:
        case OutputFormat.YAML:
            return [f"---\n{to_yaml(without_server_fields(document))}" for document in documents]
        case OutputFormat.JSON:
            return [to_json(without_server_fields(document)) for document in documents]
        case OutputFormat.NAME:
            return _names([FetchedKind(known, documents)])
    rows = [table.row(document, session.now()) for document in documents]
    return table.lines(rows, headers=headers) if rows else []


def _tables(session: Session, found: list[FetchedKind], options: GetOptions) -> Iterable[str]:
    several = len(found) > 1
    for each in found:
        if each.documents:
            table = options.table(each.known, with_kind=several)
            rows = [table.row(document, session.now()) for document in each.documents]
            yield "\n".join(table.lines(rows, headers=options.headers))


def _names(found: list[FetchedKind]) -> list[str]:
    return [f"{each.known.title}/{document['metadata']['name']}" for each in found for document in each.documents]


def _none_found_message(session: Session, found: list[FetchedKind], options: GetOptions) -> str:
    namespaced = any(each.known.resource.namespaced for each in found)
    if options.all_namespaces or not namespaced:
        return "No resources found"
    return f"No resources found in {session.namespace} namespace."
