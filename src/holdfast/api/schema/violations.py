"""An object against its schema: types, bounds, enums, patterns, formats, keys. Worded as the API server words it."""

import re
import sys
from collections.abc import Iterable, Iterator
from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

import msgspec

from holdfast.api.schema.crd import Schema
from holdfast.errors import HoldfastError

# Why an object was refused, in the API server's words.


class Cause(NamedTuple):
    """One thing that is wrong: where, what, and how the API server classes it."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ValidationFailed(HoldfastError):
    """The object breaks its schema or rules."""

    def __init__(self, subject: str, causes: Iterable[Cause]) -> None:
        self.causes = tuple(causes)
        super().__init__(f"{subject} is invalid: " + "; ".join(map(str, self.causes)))


# What the API server does to an object before it judges it: unknown fields, nulls, defaults.

INT64 = 2**63
PRESERVE = "x-kubernetes-preserve-unknown-fields"


def child_path(path: str, step: str | int) -> str:
    """The path of a field or an element below `path`."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def is_integer(value: float) -> bool:
    """Whether the server takes the number for an integer: JSON has none of its own, so 4.0 is one, and 1e300 is not."""
    return -INT64 <= value < INT64 and value == int(value)


def unknown_fields(value: Any, schema: Schema, path: str = "") -> Iterator[Cause]:
    """Fields that the schema does not have; the server prunes them, or refuses them when asked to be strict."""
    for step, child, child_schema in _children(value, schema):
        if child_schema is not None:
            yield from unknown_fields(child, child_schema, child_path(path, step))
        elif not schema.get(PRESERVE):
            near = get_close_matches(str(step), schema.get("properties", {}), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Cause(child_path(path, step), f'unknown field "{child_path(path, step)}"{hint}', "UnknownField")


def with_defaults(value: Any, schema: Schema) -> Any:
    """A copy without nulls and unknown fields, and with the schema's defaults."""
    match value:
        case dict():
            kept = {
                str(step): child if child_schema is None else with_defaults(child, child_schema)
                for step, child, child_schema in _children(value, schema)
                # A null means "not written", save where nothing is known of the field.
                if (child is not None and child_schema is not None) or (child_schema is None and schema.get(PRESERVE))
            }
            return {**kept, **_defaults(kept, schema)}
        case list():
            return [with_defaults(element, schema.get("items", {})) for element in value]
        case float() if schema.get("type") != "number" and is_integer(value):
            return int(value)
        case _:
            return value


def _defaults(value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    properties: dict[str, Schema] = schema.get("properties", {})
    return {
        name: deepcopy(child["default"])
        for name, child in properties.items()
        if "default" in child and name not in value
    }


def _children(value: Any, schema: Schema) -> Iterator[tuple[str | int, Any, Schema | None]]:
    """Each element or field with its schema; None for a field that the schema does not have."""
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield index, element, schema.get("items", {PRESERVE: True})
    elif isinstance(value, dict):
        properties = schema.get("properties", {})
        for name, child in value.items():
            yield name, child, properties.get(name, schema.get("additionalProperties"))


# A value of a wrong type, or a missing one, would make the rules fail for the wrong reason: they are not asked then.
BLOCKING = {
    "FieldValueTypeInvalid",
    "FieldValueRequired",
    "FieldValueNotSupported",
    "FieldValueTooLong",
    "FieldValueTooMany",
}
INT32 = 2**31

_RFC3339 = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]\d\d:\d\d)"
)
_MISSING = object()


def schema_violations(value: Any, schema: Schema, path: str = "", old: Any = _MISSING) -> Iterator[Cause]:
    """Everything in `value` that its schema refuses; what did not change since `old` is let be, as the server does."""
    if value == old and type(value) is type(old):
        return
    wrong_type = _type_violation(value, schema, path)
    if wrong_type is not None:
        yield wrong_type
        return
    match value:
        case dict():
            yield from _object_violations(value, schema, path, old)
        case list():
            yield from _list_violations(value, schema, path)
        case str():
            yield from _text_violations(value, schema, path)
        case bool():
            pass
        case int() | float():
            yield from _number_violations(value, schema, path)


def json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            largest = sys.float_info.max
            return "integer" if is_integer(value) else "number" if -largest <= value <= largest else "infinity"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _type_violation(value: Any, schema: Schema, path: str) -> Cause | None:
    wanted = "integer,string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")
    found = json_type(value)
    if wanted is None or found in wanted.split(",") or (wanted == "number" and found == "integer"):
        return None
    message = f'Invalid value: "{found}": {path or "body"} in body must be of type {wanted}: "{found}"'
    return Cause(path, message, "FieldValueTypeInvalid")


def _object_violations(value: dict[str, Any], schema: Schema, path: str, old: Any) -> Iterator[Cause]:
    for name in schema.get("required", ()):
        if name not in value:
            yield Cause(child_path(path, name), "Required value", "FieldValueRequired")
    yield from _max_items_violation(value, schema.get("maxProperties"), path)
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, child in value.items():
        child_schema = properties.get(name, others)
        if child_schema is not None:
            before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
            yield from schema_violations(child, child_schema, child_path(path, name), before)


def _list_violations(value: list[Any], schema: Schema, path: str) -> Iterator[Cause]:
    yield from _max_items_violation(value, schema.get("maxItems"), path)
    if len(value) < schema.get("minItems", 0):
        yield _invalid(path, len(value), f"should have at least {schema['minItems']} items")
    for index, element in enumerate(value):
        yield from schema_violations(element, schema.get("items", {}), child_path(path, index))
    yield from _duplicates(value, schema, path)


def _max_items_violation(value: dict[str, Any] | list[Any], most: int | None, path: str) -> Iterator[Cause]:
    if most is not None and len(value) > most:
        yield Cause(path, f"Too many: {len(value)}: must have at most {most} items", "FieldValueTooMany")


def _duplicates(value: list[Any], schema: Schema, path: str) -> Iterator[Cause]:
    seen: list[Any] = []
    for index, element in enumerate(value):
        key = list_map_key(element, schema)
        if key is not None and key in seen:
            yield Cause(child_path(path, index), f"Duplicate value: {_json(key)}", "FieldValueDuplicate")
        seen.append(key)


def list_map_key(element: Any, schema: Schema) -> Any:
    """What tells an element from the others of a set or a map of elements; None where doubles are fine."""
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return element
        case "map" if isinstance(element, dict):
            return {name: element[name] for name in schema["x-kubernetes-list-map-keys"] if name in element}
        case _:
            return None


def _text_violations(value: str, schema: Schema, path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxLength", len(value)):
        yield Cause(path, f"Too long: may not be more than {schema['maxLength']} bytes", "FieldValueTooLong")
        return
    if len(value) < schema.get("minLength", 0):
        yield _invalid(path, value, f"should be at least {schema['minLength']} chars long")
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield _invalid(path, value, f"should match '{schema['pattern']}'")
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(map(_json, schema["enum"]))
        yield Cause(path, f"Unsupported value: {_json(value)}: supported values: {supported}", "FieldValueNotSupported")
    if schema.get("format") == "date-time" and not _RFC3339.fullmatch(value):
        message = f"Invalid value: {_json(value)}: {path} in body must be of type date-time: {_json(value)}"
        yield Cause(path, message, "FieldValueTypeInvalid")


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """As the server's RE2 reads it: $ is the very end, and \\s knows ASCII only."""
    end = pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern
    return re.compile(end, re.ASCII)


def _number_violations(value: float, schema: Schema, path: str) -> Iterator[Cause]:
    if schema.get("format") == "int32" and not -INT32 <= value < INT32:
        yield _invalid(path, value, f"should be between {-INT32} and {INT32 - 1}")
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and schema.get("exclusiveMinimum") and value <= least:
        yield _invalid(path, value, f"should be greater than {least}")
    elif least is not None and value < least:
        yield _invalid(path, value, f"should be greater than or equal to {least}")
    if most is not None and value > most:
        yield _invalid(path, value, f"should be less than or equal to {most}")


def _invalid(path: str, value: Any, complaint: str) -> Cause:
    return Cause(path, f"Invalid value: {_json(value)}: {path} in body {complaint}")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
