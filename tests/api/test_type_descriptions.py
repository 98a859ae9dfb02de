"""Schemas in, words out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from holdfast.api.scalars import DnsLabel, DnsSubdomain, Labels, Port, Quantities, Quantity, Seconds, Timestamp
from holdfast.api.schema.crd import struct_schema
from holdfast.api.schema.field_docs import code, describe_type


def _words(annotation: Any) -> str:
    """What is said of a struct's field of that type."""
    sample = type("Sample", (Struct,), {"__annotations__": {"value": annotation}})
    return describe_type(struct_schema(sample)["properties"]["value"])


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (Port, "integer, 1 to 65535"),
        (Seconds, "integer, at least 0"),
        (Timestamp, "time"),
        (Quantity, "quantity"),
        (DnsLabel, "string, 1 to 63 characters, a DNS label"),
        (DnsSubdomain | None, "string, 1 to 253 characters, a DNS name"),
        (Labels, "map of string (at most 63 characters, a label's value), at most 64 keys"),
        (Quantities, "map of quantity, at most 16 keys"),
        (tuple[Port, ...], "list of integer (1 to 65535)"),
        (dict[str, Any], "object"),
    ],
    ids=str,
)
def test_a_type_of_the_models_is_put_into_words(annotation: Any, words: str) -> None:
    assert _words(annotation) == words


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "enum": ["a", "b"]}, "`a` or `b`"),
        ({"type": "string", "minLength": 2}, "string"),
        ({"type": "string", "maxLength": 9, "pattern": "^(a|b)$"}, r"string, at most 9 characters, as `^(a\|b)$`"),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, "number, above 0"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "number, 0 to 1"),
        ({"type": "integer", "maximum": 7}, "integer, at most 7"),
        (
            {
                "type": "array",
                "items": {"type": "object", "properties": {}},
                "maxItems": 4,
                "x-kubernetes-list-map-keys": ["host", "port"],
            },
            "list of [Thing](#thing), told apart by `host` and `port`, at most 4 elements",
        ),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "[Thing](#thing)"),
        ({"type": "object", "additionalProperties": {"type": "object", "properties": {}}}, "map of [Thing](#thing)"),
    ],
    ids=str,
)
def test_bounds_are_said_and_parts_are_linked(schema: dict[str, Any], words: str) -> None:
    assert describe_type(schema, "[Thing](#thing)") == words


def test_a_schema_that_nobody_foresaw_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="no words"):
        describe_type({"oneOf": []})


@given(st.text())
def test_literal_text_never_ends_its_cell(text: str) -> None:
    assert "|" not in code(text).replace(r"\|", "")
    assert code(text).replace(r"\|", "|") == f"`{text}`" or r"\|" in text
