"""What the engine knows of a kind: how it is served, what its objects look like, and what is special about it."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from random import Random
from typing import Protocol

import msgspec
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.api.schema.crd import Schema
from holdfast.api.schema.violations import PRESERVE, Cause
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.names import dns_subdomain_problems

METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})


class ObjectReader(Protocol):
    """What a new object may depend on."""

    rng: Random

    def document(self, resource: str, key: Key) -> JSON | None:
        """Another object."""
        ...

    def documents(self, resource: str) -> Iterator[JSON]:
        """All objects of a kind."""
        ...


def _nothing_to_do(_draft: JSON) -> None:
    pass


def _nothing_to_make(_draft: JSON, _around: ObjectReader) -> None:
    pass


def _nothing_to_carry(_draft: JSON, _old: JSON) -> None:
    pass


def _nothing_wrong(_draft: JSON, _old: JSON | None) -> Iterable[Cause]:
    return ()


class KindHooks(Struct, frozen=True, kw_only=True):
    """Where a kind differs from the others. The functions change the draft that they are given."""

    name_problems: Callable[[str], list[str]] = dns_subdomain_problems
    fields: frozenset[str] = METADATA_FIELDS
    counts_generations: bool = False
    keeps_status_of_creation: bool = False
    replaced_without_version: bool = True
    # Defaults that a schema can't express, at every write.
    set_defaults: Callable[[JSON], None] = _nothing_to_do
    # What only a new object gets.
    prepare_create: Callable[[JSON, ObjectReader], None] = _nothing_to_make
    # What an update or a status update can't change.
    prepare_update: Callable[[JSON, JSON], None] = _nothing_to_carry
    prepare_status_update: Callable[[JSON, JSON], None] = _nothing_to_carry
    validate: Callable[[JSON, JSON | None], Iterable[Cause]] = _nothing_wrong
    # How long a deleted object is left to end by itself, given the seconds asked for.
    grace_s: Callable[[JSON, int | None], int] | None = None


class ServedKind(Struct, frozen=True, kw_only=True):
    group: str
    kind: str
    plural: str
    namespaced: bool
    schemas: Mapping[str, Schema]
    stored_version: str
    has_status: bool
    custom: bool = False
    special: KindHooks = KindHooks()

    @property
    def resource(self) -> str:
        """The name that objects are filed under and errors speak of: jobs.batch."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


# Kubernetes' own types as schemas: `types.toml`, in the form that definitions of custom kinds have.

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
