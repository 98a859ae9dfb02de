"""What the API server does to a submitted object of our kinds: complete it, or refuse it and say why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.kinds import KINDS, kind_of
from holdfast.api.meta import ObjectMeta
from holdfast.api.schema.crd import Schema, object_schema, struct_schema
from holdfast.api.schema.rules import Reason
from holdfast.api.schema.violations import (
    BLOCKING,
    PRESERVE,
    Cause,
    ValidationFailed,
    child_path,
    list_map_key,
    schema_violations,
    unknown_fields,
    with_defaults,
)

if TYPE_CHECKING:
    from cel_expr_python import cel


# The rules of a schema, evaluated as the API server does. The CEL library is loaded when the first rule is asked: the
# operator validates nothing and does not pay for it.


RULES = "x-kubernetes-validations"

_WORDS = {
    Reason.INVALID: "Invalid value",
    Reason.REQUIRED: "Required value",
    Reason.FORBIDDEN: "Forbidden",
}


def rule_violations(value: Any, schema: Schema, old: Any = None, path: str = "") -> Iterator[Cause]:
    """The rules that `value` breaks, here and below; transition rules are asked where there is an old value.

    As on the server, rules about what did not change since `old` are not asked again.
    """
    if old is not None and value == old:
        return
    if rules := schema.get(RULES):
        new, before = _typed(value, schema), None if old is None else _typed(old, schema)
        for rule in rules:
            yield from _violation(rule, new, before, path)
    if isinstance(value, dict):
        for name, child in value.items():
            child_schema = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if child_schema is not None:
                before = old.get(name) if isinstance(old, dict) else None
                yield from rule_violations(child, child_schema, before, child_path(path, name))
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from rule_violations(element, schema.get("items", {}), None, child_path(path, index))


def _violation(rule: dict[str, str], new: Any, old: Any, path: str) -> Iterator[Cause]:
    data = {"self": new}
    if re.search(r"\boldSelf\b", rule["rule"]):
        if old is None:
            return
        data["oldSelf"] = old
    verdict = _program(rule["rule"]).eval(data=data).value()
    if verdict is True:
        return
    reason = Reason(rule.get("reason", Reason.INVALID))
    field = path + rule.get("fieldPath", "")
    # Anything but false is CEL's own complaint: the rule could not be evaluated, which refuses the object too.
    message = rule.get("message", f"failed rule: {rule['rule']}")
    detail = message if verdict is False else f"{message} (the rule could not be evaluated: {verdict})"
    yield Cause(field.removeprefix("."), f"{_WORDS[reason]}: {detail}", reason.value)


def _typed(value: Any, schema: Schema) -> Any:
    """The value with the types that CEL sees on the server: numbers are doubles, sets and maps have no order."""
    match value:
        case dict():
            properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
            return {name: _typed(child, properties.get(name, others)) for name, child in value.items()}
        case list():
            elements = [_typed(element, schema.get("items", {})) for element in value]
            return sorted(
                elements, key=lambda element: msgspec.json.encode(list_map_key(element, schema), order="sorted")
            )
        case bool():
            return value
        case int() | float() if schema.get("type") == "number":
            return float(value)
        case float() if schema.get("type") == "integer":
            return int(value)
        case _:
            return value


_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([numkKMGTPE]?)(i?))")
_POWERS = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def quantity(text: str) -> float:
    """The amount that Kubernetes means by 500m, 32Gi or 4e3."""
    parts = _QUANTITY.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is no quantity")
    number, exponent, power, binary = parts.groups()
    if exponent:
        return float(number + exponent)
    return float(Decimal(number) * Decimal(1024 if binary else 1000) ** _POWERS[power])


@cache
def _program(rule: str) -> cel.Expression:
    return _environment().compile(rule)


@cache
def _environment() -> cel.Env:
    from cel_expr_python import cel
    from cel_expr_python.ext.ext_strings import ExtStrings

    kinds = cel.Type
    functions = [
        cel.FunctionDecl(
            "quantity",
            [cel.Overload("quantity_string", kinds.DOUBLE, [kinds.STRING], is_member=False, impl=quantity)],
        ),
        cel.FunctionDecl(
            "compareTo",
            [
                cel.Overload(
                    "quantity_compare",
                    kinds.INT,
                    [kinds.DOUBLE, kinds.DOUBLE],
                    is_member=True,
                    impl=lambda left, right: (left > right) - (left < right),
                )
            ],
        ),
    ]
    return cel.NewEnv(
        variables={"self": kinds.DYN, "oldSelf": kinds.DYN},
        extensions=[ExtStrings(), cel.CelExtension("kubernetes", functions)],
    )


__all__ = ["Cause", "ValidationFailed", "validate_object"]

_GENERATED_SUFFIX = "x" * 5
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_LABEL_NAME = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def validate_object(
    document: Mapping[str, Any], old: Mapping[str, Any] | None = None, *, status: bool = False, strict: bool = True
) -> dict[str, Any]:
    """The object as the server would store it, with defaults; raises `ValidationFailed` with every cause it finds.

    With `old` the document is an update, and the rules about changes are asked. Status is apart from the rest, as on
    the server: a create drops it, an update keeps the old one, and with `status` only it is updated. `strict` refuses
    unknown fields instead of dropping them.
    """
    schema = _served_schema(document)
    causes = list(unknown_fields(document, schema)) if strict else []
    new: dict[str, Any] = with_defaults(_spec_or_status_update(document, old, status=status), schema)
    before = None if old is None else with_defaults(old, schema)
    causes += _metadata_violations(new)
    causes += schema_violations(new, schema, old=before)
    if not any(cause.reason in BLOCKING for cause in causes):
        causes += rule_violations(_with_generated_name(new), schema, before)
    if causes:
        raise ValidationFailed(subject(document), causes)
    return new


def subject(document: Mapping[str, Any]) -> str:
    """Kind and name as people write them: TrainingJob/mnist."""
    metadata = document.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    name = named.get("name") or (f"{named['generateName']}*" if named.get("generateName") else "(no name)")
    return f"{document.get('kind') or '(no kind)'}/{name}"


def schema_of(document: Mapping[str, Any]) -> Schema | None:
    """The schema of the document's kind, metadata included; None when the kind is not ours."""
    api_version, kind = document.get("apiVersion"), document.get("kind")
    ours = isinstance(api_version, str) and isinstance(kind, str) and kind_of(api_version, kind)
    return _schemas()[str(kind)] if ours else None


def _served_schema(document: Mapping[str, Any]) -> Schema:
    schema = schema_of(document)
    if schema is not None:
        return schema
    api_version, kind = document.get("apiVersion"), document.get("kind")
    served = ", ".join(f"{known.kind} ({known.api_version})" for known in KINDS)
    raise ValidationFailed(
        subject(document), [Cause("kind", f"no kind of holdfast: {api_version} {kind}; there are {served}")]
    )


@cache
def _schemas() -> dict[str, Schema]:
    metadata = struct_schema(ObjectMeta)
    metadata["properties"]["managedFields"] = {"type": "array", "items": {"type": "object", PRESERVE: True}}
    metadata["properties"]["selfLink"] = {"type": "string"}
    schemas = {kind.kind: object_schema(kind) for kind in KINDS}
    return {
        kind: {**schema, "properties": {**schema["properties"], "metadata": metadata}}
        for kind, schema in schemas.items()
    }


def _spec_or_status_update(
    document: Mapping[str, Any], old: Mapping[str, Any] | None, *, status: bool
) -> dict[str, Any]:
    source, kept = (old or {}, document) if status else (document, old or {})
    body = {name: value for name, value in source.items() if name != "status"}
    return {**body, "status": kept["status"]} if kept.get("status") is not None else body


def _metadata_violations(document: Mapping[str, Any]) -> Iterator[Cause]:
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        return  # its type is refused by the schema
    name = metadata.get("name") or metadata.get("generateName")
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
    elif isinstance(name, str) and not (
        _NAME.fullmatch(_with_generated_name(document)["metadata"]["name"]) and len(name) <= 253
    ):
        message = "use lower case letters, digits, '-' and '.', starting and ending with a letter or digit"
        yield Cause("metadata.name", f'Invalid value: "{name}": {message}')
    labels = metadata.get("labels", {})
    for key, value in labels.items() if isinstance(labels, dict) else ():
        if not _LABEL_NAME.fullmatch(key) or not (isinstance(value, str) and _LABEL_VALUE.fullmatch(value)):
            yield Cause("metadata.labels", f'Invalid value: "{key}={value}": not a label that Kubernetes accepts')


def _with_generated_name(document: Mapping[str, Any]) -> dict[str, Any]:
    """With the name that the server would make of generateName, or one of its length."""
    metadata = document["metadata"]
    if metadata.get("name") or not metadata.get("generateName"):
        return dict(document)
    return {**document, "metadata": {**metadata, "name": f"{metadata['generateName'][:58]}{_GENERATED_SUFFIX}"}}
