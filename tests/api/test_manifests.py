"""Manifests are read as kubectl reads them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.manifests import InvalidManifest, documents

# What both JSON and YAML can write without escapes of their own.
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x10FFFF, exclude_categories=["Cs", "Cc", "Cn", "Co"]))
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-05", 5e-05),
        ("1E3", 1000.0),
        ("1e+2", 100.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-0.5", -0.5),
        ("7", 7),
        ("+7", 7),
        ("0o17", 15),
        ("017", 15),
        ("-017", -15),
        ("0x1F", 31),
        ("0b11", 3),
        ("0x_", "0x_"),
        ("18446744073709551616", 18446744073709551616.0),
        ("1_000", 1000),
        ("0", 0),
        ("08", 8.0),
        ("yes", True),
        ("No", False),
        ("on", True),
        ("OFF", False),
        ("y", True),
        ("N", False),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("1.2.3", "1.2.3"),
        ("32Gi", "32Gi"),
        ("1e", "1e"),
        ("'5'", "5"),
        ('"yes"', "yes"),
        ("!!str 5", "5"),
        ("yess", "yess"),
        ("<<", "<<"),
    ],
)
def test_a_scalar_is_what_kubectl_makes_of_it(text: str, value: Any) -> None:
    (document,) = documents(f"a: {text}")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", []),
        ("# nothing\n---\n", []),
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("---\n---\na: 1\n...\n", [{"a": 1}]),
        ('{"a": 1}', [{"a": 1}]),
        ('\n{"a":\t1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}]),
        ("{}", [{}]),
        ("{a: 1}", [{"a": 1}]),
        ('{"a": b}', [{"a": "b"}]),
        ("1: a\ntrue: b\nnull: c", [{"1": "a", "true": "b", "null": "c"}]),
        ("n: a", [{"false": "a"}]),
        ("base: &b {x: 1, z: 2}\nmore: {<<: *b, x: 3}", [{"base": {"x": 1, "z": 2}, "more": {"x": 3, "z": 2}}]),
        ("a: &x [1]\nb: *x", [{"a": [1], "b": [1]}]),
        ("a: |\n  x\n  z\n", [{"a": "x\nz\n"}]),
    ],
)
def test_documents_are_separated(text: str, read: list[Any]) -> None:
    assert list(documents(text)) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3", 'line 3, column 1: the field "a" is there twice'),
        ("a: {b: 1, b: 1}", 'the field "b" is there twice'),
        ("1: a\n'1': b", 'the field "1" is there twice'),
        ('{"a": 1, "a": 1}', 'the field "a" is there twice'),
        ("a: [1, 2", "line 1, column 9"),
        ("a:\n\t- 1", "line 2, column 1"),
        ("a: b: c", "mapping values are not allowed"),
        ('{"a": 1} trailing', "line 1, column 10"),
        ('{"a": [}', "line 1, column 8"),
        ('{"a": 1e400}', "1e400 is not a number"),
        ('{"a": 1' + "0" * 400 + "}", "too long to be read"),
        ("a: 1" + "0" * 400, "too long to be read"),
        ("a: 1" + "0" * 5000, "too long to be read"),
        ('{"a": 1' + "0" * 5000 + "}", "too long to be read"),
        ("a: *nowhere", "undefined alias"),
        ("? [a]\n: 1", "a key must be a word"),
        ("a: .inf", ".inf is not a number"),
        ("a: -.INF", "is not a number"),
        ("a: .nan", ".nan is not a number"),
        ("a: 1e999", "is not a number"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ("a: !!binary aGk=", "is no type of JSON"),
        ("a: !!python/object/apply:os.getcwd []", "is no type of JSON"),
        ("a: !!set {b}", "is no type of JSON"),
        ("a: \x01", "special characters are not allowed"),
        ("&a [*a]", "contains itself"),
        ("a: &a {b: *a}", "contains itself"),
        ("[" * 5000, "nested too deeply"),
        ('{"a":' * 5000, "nested too deeply"),
    ],
)
def test_what_kubectl_would_not_take_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidManifest) as refusal:
        list(documents(text))
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_aliases_can_not_make_a_small_text_huge() -> None:
    lines = ["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 64))]
    with pytest.raises(InvalidManifest, match="too large"):
        list(documents("\n".join(lines)))


def test_documents_before_a_mistake_are_read() -> None:
    reading = documents("a: 1\n---\nb: [")
    assert next(reading) == {"a": 1}
    with pytest.raises(InvalidManifest):
        next(reading)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4))
def test_json_reads_alike_as_json_and_as_yaml(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert list(documents(text)) == [value]
    assert list(documents(f"# not JSON\n{text}")) == [value]
