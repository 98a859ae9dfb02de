"""Structs in, structural schemas out."""

from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

import pytest
from msgspec import Meta, Struct

from holdfast.api.meta import ApiStruct
from holdfast.api.scalars import Quantity, list_map_keys
from holdfast.api.schema.crd import struct_schema
from holdfast.api.schema.rules import Reason, Rule, immutable_while, unchanged


def _field(annotation: Any, default: Any = ...) -> Any:
    """The schema of the one field of a struct."""
    namespace = {"__annotations__": {"value": annotation}} | ({} if default is ... else {"value": default})
    return struct_schema(type("Sample", (Struct,), namespace))["properties"]["value"]


class Inner(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(rule="has(self.a)", message="write a", field=".a", reason=Reason.REQUIRED),
        Rule(rule="self.b > 1", message="b is small"),
    )

    a_name: Annotated[str, Meta(description="The name.")] = ""
    b: int


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (int, {"type": "integer", "format": "int32"}),
        (float, {"type": "number", "format": "double"}),
        (Annotated[int, Meta(ge=1, le=9)], {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9}),
        (
            Annotated[int, Meta(extra_json_schema={"format": "int64"}), Meta(description="Long.")],
            {"type": "integer", "format": "int64", "description": "Long."},
        ),
        (
            Annotated[float, Meta(gt=0)],
            {"type": "number", "format": "double", "minimum": 0, "exclusiveMinimum": True},
        ),
        (
            Annotated[str, Meta(min_length=1, max_length=5, pattern="^a")],
            {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^a"},
        ),
        (Literal["b", "a"], {"type": "string", "enum": ["a", "b"]}),
        (
            Annotated[tuple[str, ...], Meta(min_length=1, max_length=3)],
            {
                "type": "array",
                "items": {"type": "string"},
                "x-kubernetes-list-type": "atomic",
                "minItems": 1,
                "maxItems": 3,
            },
        ),
        (
            Annotated[tuple[str, ...], Meta(extra_json_schema=list_map_keys("a", "b"))],
            {
                "type": "array",
                "items": {"type": "string"},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["a", "b"],
            },
        ),
        (
            Annotated[dict[str, int], Meta(max_length=3)],
            {"type": "object", "additionalProperties": {"type": "integer", "format": "int32"}, "maxProperties": 3},
        ),
        (dict[str, Any], {"type": "object"}),
        (
            int | Annotated[str, Meta(max_length=9)],
            {"maxLength": 9, "anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
        ),
    ],
    ids=str,
)
def test_a_type_becomes_a_schema(annotation: Any, schema: dict[str, Any]) -> None:
    assert _field(annotation) == schema


@pytest.mark.parametrize("annotation", [str, Annotated[int, Meta(ge=1)], Inner, Quantity])
def test_a_field_that_may_be_absent_is_not_nullable(annotation: Any) -> None:
    assert _field(annotation | None, None) == _field(annotation)


@pytest.mark.parametrize("annotation", [str | bool, int | str | float, bytes, Enum("Colour", ["RED"])], ids=str)
def test_a_type_without_a_structural_schema_is_a_mistake_of_ours(annotation: Any) -> None:
    with pytest.raises(TypeError, match="structural schema"):
        _field(annotation)


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [
        (int, 3, True),
        (bool, True, True),
        (str, "a", True),
        (float, 0.5, True),
        (int, 0, False),
        (bool, False, False),
        (str, "", False),
        (int | None, None, False),
        (tuple[str, ...], (), False),
        (dict[str, str], {}, False),
    ],
)
def test_a_default_is_shown_when_it_says_something(annotation: Any, default: Any, shown: bool) -> None:
    schema = _field(annotation, default)
    assert ("default" in schema) is shown
    assert schema.get("default", default) == default


def test_a_struct_lists_what_is_required_and_its_rules() -> None:
    assert struct_schema(Inner) == {
        "type": "object",
        "required": ["b"],
        "properties": {
            "aName": {"type": "string", "description": "The name."},
            "b": {"type": "integer", "format": "int32"},
        },
        "x-kubernetes-validations": [
            {"rule": "has(self.a)", "message": "write a", "fieldPath": ".a", "reason": "FieldValueRequired"},
            {"rule": "self.b > 1", "message": "b is small"},
        ],
    }


def test_a_frozen_path_is_guarded_at_every_step() -> None:
    assert unchanged(".spec.a.b") == (
        "(has(self.spec.a) && has(self.spec.a.b)) == (has(oldSelf.spec.a) && has(oldSelf.spec.a.b)) && "
        "(!(has(self.spec.a) && has(self.spec.a.b)) || self.spec.a.b == oldSelf.spec.a.b)"
    )


def test_every_frozen_path_has_a_rule_that_blames_it() -> None:
    rules = immutable_while((".spec.a", ".spec.b"), while_="self.busy", message="wait")
    assert [(rule.field, rule.reason, rule.message) for rule in rules] == [
        (".spec.a", Reason.FORBIDDEN, "wait"),
        (".spec.b", Reason.FORBIDDEN, "wait"),
    ]
    assert all(rule.rule.startswith("!(self.busy) || ") for rule in rules)
