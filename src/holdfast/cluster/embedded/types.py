"""Kubernetes' own types as schemas: `types.toml`, in the form that definitions of custom kinds have."""

import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from holdfast.api.schema import Schema
from holdfast.api.structure import PRESERVE

QUANTITY = "quantity"

_SCALARS: dict[str, Schema] = {
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string", "format": QUANTITY},
    "int-or-string": {"x-kubernetes-int-or-string": True},
    "json": {PRESERVE: True},
}


@cache
def type_schema(name: str) -> Schema:
    """The schema of a type of the table."""
    schema: Schema = {"type": "object", "properties": {}}
    required = []
    for field in _table()[name].split(","):
        field_name, type_name, *rules = field.split()
        schema["properties"][field_name] = _ruled(_schema(type_name), rules)
        if "!" in rules:
            required.append(field_name)
    return {**schema, "required": required} if required else schema


@cache
def _table() -> dict[str, str]:
    return tomllib.loads(files(__package__).joinpath("types.toml").read_text(encoding="utf-8"))


def _schema(name: str) -> Schema:
    if name.startswith("["):
        return {"type": "array", "items": _schema(name[1:-1])}
    if name.startswith("{"):
        return {"type": "object", "additionalProperties": _schema(name[1:-1])}
    return _SCALARS[name] if name in _SCALARS else type_schema(name)


def _ruled(schema: Schema, rules: list[str]) -> Schema:
    ruled = dict(schema)
    for rule in rules:
        if rule == "!":
            # To the server an empty text is as good as none.
            ruled |= {"minLength": 1} if schema.get("type") == "string" else {}
        elif bound := re.fullmatch(r"([<>])=(\d+)", rule):
            ruled["minimum" if bound[1] == ">" else "maximum"] = int(bound[2])
        elif rule.startswith("("):
            ruled["enum"] = rule[1:-1].split("|")
        else:
            ruled["default"] = rule[1:] if schema.get("type") == "string" else msgspec.json.decode(rule[1:])
    return ruled
