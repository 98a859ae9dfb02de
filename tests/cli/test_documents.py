"""Whole objects as text."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.api.manifests import documents
from holdfast.cli.get import as_list, to_json, to_yaml, without_server_fields

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
@example({"a": "1e3", "b": "0o7", "c": "y", "d": "12:30", "e": "2026-01-01", "f": "null", "g": "a\nb\n", "h": "a \nb"})
@example({"a": "\n", "b": "\ta\nb", "c": " a\nb", "d": "a\n\n", "e": "#a\nb"})
def test_what_is_printed_is_read_back_the_same(document: dict[str, Any]) -> None:
    assert list(documents(to_yaml(document))) == [document]
    assert json.loads(to_json(document)) == document


def test_texts_are_written_as_kubectl_writes_them() -> None:
    document = {"b": "1", "a": "x\ny\n", "c": ["2026-01-01T00:00:00Z"]}
    assert to_yaml(document) == 'a: |\n  x\n  y\nb: "1"\nc:\n- "2026-01-01T00:00:00Z"'


def test_what_only_the_server_is_interested_in_is_left_out() -> None:
    document = {"metadata": {"name": "a", "managedFields": [{}]}, "spec": {}}
    assert without_server_fields(document) == {"metadata": {"name": "a"}, "spec": {}}
    assert as_list([document])["items"] == [document]
