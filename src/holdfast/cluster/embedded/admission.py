"""A submitted document, taken apart as the API server does: what it can't read, what it completes, what it refuses."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.api import refusal
from holdfast.api.cel import rule_violations
from holdfast.api.checking import BLOCKING, schema_violations
from holdfast.api.schema import Schema
from holdfast.api.structure import unknown_fields, with_defaults
from holdfast.cluster.embedded.kind import ServedKind
from holdfast.cluster.embedded.types import QUANTITY
from holdfast.cluster.errors import BadRequest, Cause
from holdfast.cluster.protocol import JSON

_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
WRONG_TYPE = "FieldValueTypeInvalid"


class DecodedObject(NamedTuple):
    """A document as the server understands it, and what it already found wrong."""

    draft: JSON
    problems: list[Cause]


def decode_object(kind: ServedKind, version: str, document: JSON, known: JSON | None = None) -> DecodedObject:
    """The document with its defaults; `BadRequest` when it has fields or types that the kind has not.

    Parts that are the very objects of `known`, which was read before, are not looked at again.
    """
    schema = kind.schemas[version]
    document = {**document, **_identity(kind, version, document)}
    unchanged = {name: value for name, value in document.items() if known is not None and value is known.get(name)}
    fresh = {name: value for name, value in document.items() if name not in unchanged}
    unknown = [cause.message.partition(";")[0] for cause in unknown_fields(fresh, schema)]
    if unknown:
        raise BadRequest(f"strict decoding error: {', '.join(unknown)}")
    fresh = {name: value for name, value in with_defaults(fresh, schema).items() if name not in unchanged}
    if not kind.custom:
        fresh = _normalized(fresh, schema)
    problems = _problems(kind, version, fresh, schema)
    draft = {"metadata": {}, **fresh, **unchanged}
    kind.special.set_defaults(draft)
    return DecodedObject(draft, problems)


def _identity(kind: ServedKind, version: str, document: JSON) -> JSON:
    """apiVersion and kind, which may be left out but not be another's."""
    identity = {"apiVersion": kind.api_version(version), "kind": kind.kind}
    for field, expected in identity.items():
        found = document.get(field, expected)
        if found != expected:
            raise BadRequest(f"the {field} in the data ({found}) does not match the expected {field} ({expected})")
    return identity


def _problems(kind: ServedKind, version: str, fresh: JSON, schema: Schema) -> list[Cause]:
    """What the schema says of the server's own types; of a custom kind, of its metadata only: the rest comes later."""
    looked_at = {"metadata": schema["properties"]["metadata"]} if kind.custom else schema["properties"]
    part = {name: fresh[name] for name in looked_at if name in fresh}
    problems = [_cause(cause) for cause in schema_violations(part, {"type": "object", "properties": looked_at})]
    for cause in problems:
        if cause.reason == WRONG_TYPE:
            raise BadRequest(
                f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {cause.field}: {cause.message}'
            )
    return problems


def schema_problems(kind: ServedKind, version: str, draft: JSON, old: JSON | None) -> Iterator[Cause]:
    """What a custom kind's schema and rules refuse; the rules are asked only where types and bounds hold."""
    if not kind.custom:
        return
    schema = kind.schemas[version]
    found = list(schema_violations(draft, schema) if old is None else schema_violations(draft, schema, old=old))
    if not any(cause.reason in BLOCKING for cause in found):
        found += rule_violations(_visible(draft), schema, _visible(old) if old else None)
    yield from map(_cause, found)


def _visible(document: JSON) -> JSON:
    """What rules can see: of the metadata the name alone, so that a new label gives no cause to ask them again."""
    metadata = {name: document["metadata"][name] for name in ("name", "generateName") if name in document["metadata"]}
    return {**document, "metadata": metadata}


def _cause(cause: refusal.Cause) -> Cause:
    return Cause(cause.field, cause.message, cause.reason)


def _normalized(value: Any, schema: Schema) -> Any:
    """As the server writes its own types: empty lists and maps are left out, amounts are texts."""
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        children = {name: (child, properties.get(name, others)) for name, child in value.items()}
        return {
            name: child if child_schema is None else _normalized(child, child_schema)
            for name, (child, child_schema) in children.items()
            if child_schema is None or not _is_empty_collection(child, child_schema)
        }
    if isinstance(value, list):
        return [_normalized(element, schema.get("items", {})) for element in value]
    return _quantity(value) if schema.get("format") == QUANTITY else value


def _quantity(value: Any) -> str:
    text = str(value)
    if isinstance(value, bool) or not _QUANTITY.fullmatch(text):
        raise BadRequest(f'quantities must be numbers with an optional unit, such as 500m, 4 or 32Gi, not "{text}"')
    return text


def _is_empty_collection(value: Any, schema: Schema) -> bool:
    return (value == [] and "items" in schema) or (value == {} and "additionalProperties" in schema)
