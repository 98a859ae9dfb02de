import msgspec
import pytest

from holdfast.api.core.selectors import LabelSelector, NodeSelector, Requirement
from holdfast.cluster.protocol import JSON

LABELS = {"zone": "a", "cores": "8", "empty": ""}


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("zone", "In", ["a", "b"], True),
        ("zone", "In", ["b"], False),
        ("absent", "In", ["a"], False),
        ("zone", "NotIn", ["b"], True),
        ("zone", "NotIn", ["a"], False),
        ("absent", "NotIn", ["a"], True),
        ("empty", "Exists", [], True),
        ("absent", "Exists", [], False),
        ("absent", "DoesNotExist", [], True),
        ("zone", "DoesNotExist", [], False),
        ("cores", "Gt", ["7"], True),
        ("cores", "Gt", ["8"], False),
        ("cores", "Lt", ["9"], True),
        ("cores", "Lt", ["8"], False),
        ("zone", "Gt", ["7"], False),
        ("cores", "Gt", ["many"], False),
        ("absent", "Lt", ["7"], False),
        ("cores", "Gt", [], False),
        ("zone", "Resembles", ["a"], False),
    ],
)
def test_a_requirement_compares_a_label(key: str, operator: str, values: list[str], holds: bool) -> None:
    assert Requirement(key=key, operator=operator, values=tuple(values)).matches(LABELS) is holds


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ({}, True),
        ({"matchLabels": {"zone": "a"}}, True),
        ({"matchLabels": {"zone": "a", "cores": "9"}}, False),
        ({"matchLabels": {"zone": "a"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
    ],
)
def test_all_of_a_label_selector_must_hold(selector: JSON, holds: bool) -> None:
    made = msgspec.convert(selector, LabelSelector)
    assert made.matches(LABELS) is holds
    assert made.is_empty is (selector == {})


def fields(operator: str, *names: str) -> JSON:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


@pytest.mark.parametrize(
    ("terms", "holds"),
    [
        ([], False),
        ([{}], False),
        ([fields("In", "m-1")], True),
        ([fields("NotIn", "m-1")], False),
        ([fields("In", "m-2"), {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}], True),
        ([{**fields("In", "m-1"), "matchExpressions": [{"key": "x", "operator": "Exists"}]}], False),
    ],
)
def test_one_term_of_a_node_selector_is_enough(terms: list[JSON], holds: bool) -> None:
    assert msgspec.convert({"nodeSelectorTerms": terms}, NodeSelector).matches(LABELS, "m-1") is holds
