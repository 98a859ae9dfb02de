"""`holdfast describe`: all fields and events of an object, in readable form."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import typer

from holdfast.cli.errors import printable
from holdfast.cli.get import aligned, four_digits
from holdfast.cli.resource_args import find_kind, parse_resources
from holdfast.cli.session import Session
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import KnownKind, RawObject
from holdfast.times import age

INDENT = "  "
NONE = "<none>"
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_ENTRIES = ("data", "stringData", "binaryData")
_HIDDEN = ("managedFields", "name", "namespace", "labels", "annotations")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


async def describe_objects(session: Session, what: list[str]) -> int:
    texts = [
        "\n".join(described(each, await _events(session, wanted.known, each), session.now()))
        for wanted in parse_resources(what)
        for each in await _objects(session, wanted.known, wanted.names)
    ]
    if texts:
        typer.echo("\n\n\n".join(texts))
    else:
        typer.echo(f"No resources found in {session.namespace} namespace.", err=True)
    return 0


async def _objects(session: Session, known: KnownKind, names: tuple[str, ...]) -> list[RawObject]:
    if names:
        return [await session.get(known, session.key(known, name)) for name in names]
    return list((await session.cluster.list(known.resource, namespace=session.namespace_for(known))).items)


async def _events(session: Session, known: KnownKind, described_object: RawObject) -> list[JSON]:
    """The events of exactly this object, oldest first."""
    events = find_kind("events").resource
    name, uid = described_object.metadata.name, described_object.metadata.uid
    fields = f"involvedObject.kind={known.resource.kind},involvedObject.name={name}"
    listing = await session.cluster.list(
        events, namespace=described_object.metadata.namespace or "default", fields=fields
    )
    own_events = [each.document for each in listing.items if each.document["involvedObject"].get("uid") in (uid, None)]
    return sorted(own_events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


def described(described_object: RawObject, events: list[JSON], now: datetime) -> Iterator[str]:
    document, metadata = described_object.document, described_object.document["metadata"]
    annotations = {name: text for name, text in metadata.get("annotations", {}).items() if name != _LAST_APPLIED}
    head = [
        ("Name", metadata["name"]),
        *([("Namespace", metadata["namespace"])] if metadata.get("namespace") else []),
        *_pairs("Labels", metadata.get("labels") or {}),
        *_pairs("Annotations", annotations),
        ("API Version", document.get("apiVersion", "")),
        ("Kind", document.get("kind", "")),
        ("Age", age(metadata.get("creationTimestamp"), now)),
    ]
    yield from aligned([[f"{name}:" if name else "", str(text)] for name, text in head])
    yield from _section("Metadata", {name: value for name, value in metadata.items() if name not in _HIDDEN})
    yield from _section("Spec", document.get("spec"))
    for name, value in document.items():
        if name not in _TOP:
            yield from _other(document, name, value)
    status = document.get("status")
    if isinstance(status, dict):
        shown = {name: _measured(value) for name, value in status.items() if name != "conditions"}
        yield from _section("Status", shown)
        yield from _conditions(status.get("conditions") or [], now)
    yield from _event_table(events, now)


def _other(document: JSON, name: str, value: Any) -> Iterator[str]:
    if name not in _ENTRIES or not isinstance(value, dict) or not value:
        yield from _section(_title(name), value)
        return
    yield f"{_title(name)}:"
    secret = document.get("kind") == "Secret"
    # Keys are user-defined and shown unchanged; for Secrets only the length of a value is shown.
    yield from _fields({key: f"{len(str(text))} characters" if secret else text for key, text in value.items()}, INDENT)


def _measured(value: Any) -> Any:
    """The status with numbers of four digits."""
    match value:
        case dict():
            return {name: _measured(inner) for name, inner in value.items()}
        case list():
            return [_measured(inner) for inner in value]
        case float():
            return four_digits(value)
        case _:
            return value


def _pairs(title: str, pairs: dict[str, str]) -> list[tuple[str, str]]:
    lines = [f"{name}={value}" for name, value in sorted(pairs.items())] or [NONE]
    return [(title if number == 0 else "", line) for number, line in enumerate(lines)]


def _section(title: str, value: Any) -> Iterator[str]:
    if value not in (None, {}, []):
        yield from _fields({title: value}, "")


def _fields(fields: dict[str, Any], indent: str) -> Iterator[str]:
    """A line per field, with aligned values; nested fields are indented."""
    fields = {printable(title): value for title, value in fields.items()}
    width = max((len(title) for title, value in fields.items() if not _has_parts(value)), default=0) + 3
    for title, value in fields.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{title}:"
            yield from _fields({_title(name): inner for name, inner in value.items()}, indent + INDENT)
        elif isinstance(value, list) and value:
            yield f"{indent}{title}:"
            for inner in value:
                yield from _element(inner, indent + INDENT)
        else:
            lines = _scalar(value).splitlines() or [""]
            yield f"{indent}{f'{title}:'.ljust(width)}{printable(lines[0])}".rstrip()
            yield from (f"{indent}{INDENT}{printable(line)}" for line in lines[1:])


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _element(value: Any, indent: str) -> Iterator[str]:
    if not _has_parts(value):
        yield f"{indent}{printable(_scalar(value))}"
        return
    named = value.items() if isinstance(value, dict) else enumerate(value)
    lines = _fields({_title(str(name)): inner for name, inner in named}, indent + INDENT)
    # The dash marks the begin of an element.
    yield from (line if number else f"{indent}- {line.lstrip()}" for number, line in enumerate(lines))


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return NONE if value in (None, {}, []) else str(value)


def _title(name: str) -> str:
    """numWorkers is shown as Num Workers; text that is no field name stays unchanged."""
    if not re.fullmatch(r"[a-z][A-Za-z0-9]*", name):
        return name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return "UID" if name == "uid" else words[0].upper() + words[1:]


def _conditions(conditions: list[JSON], now: datetime) -> Iterator[str]:
    if not conditions:
        return
    yield "Conditions:"
    rows = [["TYPE", "STATUS", "REASON", "AGE", "MESSAGE"]]
    for each in conditions:
        changed = age(each.get("lastTransitionTime"), now)
        rows.append([*(str(each.get(name, "")) for name in ("type", "status", "reason")), changed, _message(each)])
    yield from aligned(rows, INDENT)


def _event_table(events: list[JSON], now: datetime) -> Iterator[str]:
    if not events:
        yield f"Events:  {NONE}"
        return
    yield "Events:"
    rows = [["TYPE", "REASON", "AGE", "FROM", "MESSAGE"]]
    for event in events:
        last = age(
            event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp"), now
        )
        count = event.get("count") or 1
        frequency = f"{last} (x{count} over {age(event.get('firstTimestamp'), now)})" if count > 1 else last
        source = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
        rows.append([str(event.get("type", "")), str(event.get("reason", "")), frequency, str(source), _message(event)])
    yield from aligned(rows, INDENT)


def _message(entry: JSON) -> str:
    return " ".join(str(entry.get("message", "")).split())
