"""The definition of a served kind: its names and scope, its schemas, and the hooks of the kind."""

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
from holdfast.cluster.errors import AlreadyExists, Conflict, Invalid, NotFound
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.objects import dns_subdomain_problems

METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})


class ObjectReader(Protocol):
    """Read access to the objects that a new object may depend on."""

    rng: Random

    def document(self, resource: str, key: Key) -> JSON | None:
        """One object; None when it does not exist."""
        ...

    def documents(self, resource: str) -> Iterator[JSON]:
        """All objects of a kind."""
        ...


def _no_defaults(_draft: JSON) -> None:
    pass


def _no_preparation(_draft: JSON, _around: ObjectReader) -> None:
    pass


def _nothing_to_restore(_draft: JSON, _old: JSON) -> None:
    pass


def _no_problems(_draft: JSON, _old: JSON | None) -> Iterable[Cause]:
    return ()


class KindHooks(Struct, frozen=True, kw_only=True):
    """The differences of one kind from the default behaviour. The functions change their draft in place."""

    name_problems: Callable[[str], list[str]] = dns_subdomain_problems
    fields: frozenset[str] = METADATA_FIELDS
    counts_generations: bool = False
    accepts_status_on_create: bool = False
    allows_unversioned_replace: bool = True
    # Defaults that a schema can't express, set at every write.
    set_defaults: Callable[[JSON], None] = _no_defaults
    # Fields that only a new object gets.
    prepare_create: Callable[[JSON, ObjectReader], None] = _no_preparation
    # Restores the fields that an update or a status update can't change.
    prepare_update: Callable[[JSON, JSON], None] = _nothing_to_restore
    prepare_status_update: Callable[[JSON, JSON], None] = _nothing_to_restore
    validate: Callable[[JSON, JSON | None], Iterable[Cause]] = _no_problems
    # The grace period of a deleted object, given the requested seconds.
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
        """The name of the kind in the storage and in error messages: jobs.batch."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


# The schemas of the built-in kinds, from `types.toml`, in the format of a CustomResourceDefinition.

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
    """The schema of a type in `types.toml`."""
    schema: Schema = {"type": "object", "properties": {}}
    required = []
    for field in _table()[name].split(","):
        field_name, type_name, *rules = field.split()
        schema["properties"][field_name] = _with_rules(_schema(type_name), rules)
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


def _with_rules(schema: Schema, rules: list[str]) -> Schema:
    ruled = dict(schema)
    for rule in rules:
        if rule == "!":
            # The API server treats an empty string as missing.
            ruled |= {"minLength": 1} if schema.get("type") == "string" else {}
        elif bound := re.fullmatch(r"([<>])=(\d+)", rule):
            ruled["minimum" if bound[1] == ">" else "maximum"] = int(bound[2])
        elif rule.startswith("("):
            ruled["enum"] = rule[1:-1].split("|")
        else:
            ruled["default"] = rule[1:] if schema.get("type") == "string" else msgspec.json.decode(rule[1:])
    return ruled


# The errors of the API server, with the messages of Kubernetes.


def not_found(resource: str, name: str) -> NotFound:
    return NotFound(f'{resource} "{name}" not found')


def already_exists(kind: ServedKind, name: str) -> AlreadyExists:
    return AlreadyExists(f'{kind.resource} "{name}" already exists')


def conflict(kind: ServedKind, name: str) -> Conflict:
    return _unfulfilled(
        kind, name, "the object has been modified; please apply your changes to the latest version and try again"
    )


def precondition_failed(kind: ServedKind, name: str, what: str, requested: str, found: str) -> Conflict:
    return _unfulfilled(
        kind, name, f"Precondition failed: {what} in precondition: {requested}, {what} in object meta: {found}"
    )


def _unfulfilled(kind: ServedKind, name: str, why: str) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}')


def invalid(kind: ServedKind, name: str, causes: Iterable[Cause]) -> Invalid:
    causes = tuple(dict.fromkeys(causes))
    listed = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    text = listed if len(causes) == 1 else f"[{listed}]"
    return Invalid(f'{kind.qualified_kind} "{name}" is invalid: {text}', causes=causes)


def bad_value(field: str, value: object, why: str) -> Cause:
    # A whole object does not show what is wrong with it, and may contain secrets.
    shown = "" if isinstance(value, dict | list) else f'"{value}": ' if isinstance(value, str) else f"{value}: "
    return Cause(field, f"Invalid value: {shown}{why}", "FieldValueInvalid")


def missing(field: str, why: str = "") -> Cause:
    return Cause(field, f"Required value: {why}" if why else "Required value", "FieldValueRequired")


def forbidden(field: str, why: str) -> Cause:
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")
