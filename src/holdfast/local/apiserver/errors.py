"""The errors of the API server, with the messages of Kubernetes."""

from collections.abc import Iterable

from holdfast.api.schema.violations import Cause
from holdfast.cluster.errors import AlreadyExists, Conflict, Invalid, NotFound
from holdfast.local.apiserver.kinds import ServedKind


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
