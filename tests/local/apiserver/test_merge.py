"""JSON merge patch."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import apply_merge_patch

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "c": "d"}, {"a": None}, {"c": "d"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({"a": "text"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": 1}, {}, {"a": 1}),
    ],
)
def test_a_patch_gives_what_the_standard_says(target: JSON, patch: JSON, result: JSON) -> None:
    assert apply_merge_patch(target, patch) == result


@patient
@given(OBJECTS, OBJECTS)
def test_neither_the_target_nor_the_patch_is_changed(target: JSON, patch: JSON) -> None:
    before = deepcopy((target, patch))
    apply_merge_patch(target, patch)
    assert (target, patch) == before


@patient
@given(OBJECTS, OBJECTS)
def test_a_patch_applied_twice_is_applied_once(target: JSON, patch: JSON) -> None:
    assert apply_merge_patch(apply_merge_patch(target, patch), patch) == apply_merge_patch(target, patch)


@patient
@given(OBJECTS, OBJECTS)
def test_no_null_comes_from_a_patch(target: JSON, patch: JSON) -> None:
    def nulls(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else ()
        return (value is None) + sum(map(nulls, inner))

    assert nulls(apply_merge_patch(target, patch)) <= nulls(target)
