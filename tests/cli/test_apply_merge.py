"""What applying a manifest changes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.apply import LAST_APPLIED, apply_patch, patch_to, with_last_applied
from holdfast.cluster.resources import apply_merge_patch

WORDS = st.text("ab", min_size=1, max_size=2)
VALUES = st.recursive(
    st.booleans() | st.integers(0, 3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(WORDS, VALUES, max_size=4)


def holds(live: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(name in live and holds(live[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(holds, live, wanted))
    return type(live) is type(wanted) and bool(live == wanted)


@given(before=DOCUMENTS, live=DOCUMENTS, wanted=DOCUMENTS)
def test_after_the_patch_the_object_holds_what_is_wanted_and_nothing_is_left_to_do(
    before: dict[str, Any], live: dict[str, Any], wanted: dict[str, Any]
) -> None:
    after = apply_merge_patch(live, apply_patch(before, live, wanted))
    assert holds(after, wanted)
    assert not any(name in after for name in before if name not in wanted)
    assert apply_patch(wanted, after, wanted) == {}


@given(live=DOCUMENTS, wanted=DOCUMENTS)
def test_what_others_have_added_stays(live: dict[str, Any], wanted: dict[str, Any]) -> None:
    after = apply_merge_patch(live, apply_patch({}, live, wanted))
    assert all(after[name] == value for name, value in live.items() if name not in wanted)


@pytest.mark.parametrize(
    ("live", "wanted", "expected"),
    [
        ({"a": [{"n": 1, "default": 2}]}, {"a": [{"n": 1}]}, {}),
        ({"a": [{"n": 1}, {"n": 2}]}, {"a": [{"n": 1}]}, {"a": [{"n": 1}]}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({}, {"a": None}, {}),
    ],
)
def test_defaults_that_the_server_filled_in_are_no_difference(
    live: dict[str, Any], wanted: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert apply_patch({}, live, wanted) == expected


def test_the_note_of_what_was_applied_is_kubectl_s() -> None:
    wanted = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "é"}}
    noted = with_last_applied(wanted)
    text = '{"apiVersion":"v1","data":{"k":"é"},"kind":"ConfigMap","metadata":{"annotations":{},"name":"a"}}\n'
    assert noted["metadata"]["annotations"] == {LAST_APPLIED: text}
    assert with_last_applied(noted) == noted


def test_a_block_that_is_taken_out_goes_as_a_whole_and_labels_one_by_one() -> None:
    first = {"metadata": {"name": "a", "labels": {"mine": "1"}}, "spec": {"checkpoint": {"enabled": True}}}
    live = with_last_applied(first)
    live["metadata"]["labels"] = {"mine": "1", "theirs": "2"}
    live["spec"] = {"checkpoint": {"enabled": True, "retention": 3}}
    patch = patch_to(live, with_last_applied({"metadata": {"name": "a"}, "spec": {}}))
    assert patch["spec"] == {"checkpoint": None}
    assert patch["metadata"]["labels"] == {"mine": None}


@pytest.mark.parametrize("note", ["", "no JSON", "[]", json.dumps({"metadata": 7})])
def test_a_note_that_can_t_be_read_counts_as_none(note: str) -> None:
    live = {"metadata": {"name": "a", "annotations": {LAST_APPLIED: note}}, "spec": {"theirs": 1}}
    patch = patch_to(live, with_last_applied({"metadata": {"name": "a"}, "spec": {"mine": 2}}))
    assert patch["spec"] == {"mine": 2}
