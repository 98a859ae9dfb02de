"""Merge patches: applied to the old object, they make the new one."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.resources import merge_patch

values: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2, as it is written there."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@given(objects, objects)
def test_a_patch_makes_the_new_object_of_the_old(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch(old, new)) == new


@given(objects)
def test_there_is_nothing_to_patch_between_equals(same: dict[str, Any]) -> None:
    assert merge_patch(same, same) == {}


def test_a_patch_names_only_what_changed() -> None:
    old = {"state": "Running", "workers": {"active": 2, "failed": 1}, "message": "waiting"}
    new = {"state": "Running", "workers": {"active": 2, "failed": 2}}
    assert merge_patch(old, new) == {"workers": {"failed": 2}, "message": None}
