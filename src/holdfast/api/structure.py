"""What the API server does to an object before it judges it: unknown fields, nulls, defaults."""

from collections.abc import Iterator
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from holdfast.api.refusal import Cause
from holdfast.api.schema import Schema

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
