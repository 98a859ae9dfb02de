"""The rules of a schema, evaluated as the API server does.

The CEL library is loaded when the first rule is asked: the operator validates nothing and does not pay for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.schema.crd import Schema
from holdfast.api.schema.rules import Reason
from holdfast.api.schema.violations import Cause, child_path, list_map_key

if TYPE_CHECKING:
    from cel_expr_python import cel

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
