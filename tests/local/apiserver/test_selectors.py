"""Selectors against a plain reading of what they mean."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cluster.errors import BadRequest
from holdfast.local.apiserver.selectors import field_selector, label_selector

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

KEYS = st.sampled_from(["tier", "zone", "holdfast.dev/attempt", "in", "notin"])
WORDS = st.sampled_from(["", "a", "b", "in", "1"])
LABELS = st.dictionaries(KEYS, WORDS, max_size=4)
BLANKS = st.sampled_from(["", " ", "  "])
# An operator, the key and the values that it is about.
Requirement = tuple[str, str, tuple[str, ...]]
REQUIREMENTS = st.lists(
    st.tuples(st.sampled_from(["=", "==", "!=", "in", "notin", "exists", "!"]), KEYS, st.tuples(WORDS, WORDS)),
    max_size=4,
)


def text_of(requirement: Requirement, blank: str) -> str:
    operator, key, values = requirement
    match operator:
        case "exists":
            return f"{blank}{key}{blank}"
        case "!":
            return f"!{blank}{key}"
        case "in" | "notin":
            return f"{key} {operator} ({blank}{','.join(values)}{blank})"
        case _:
            return f"{key}{blank}{operator}{blank}{values[0]}"


def naively(requirement: Requirement, labels: dict[str, str]) -> bool:
    operator, key, values = requirement
    match operator:
        case "exists":
            return key in labels
        case "!":
            return key not in labels
        case "in":
            return key in labels and labels[key] in values
        case "notin":
            return key not in labels or labels[key] not in values
        case "!=":
            return key not in labels or labels[key] != values[0]
        case _:
            return key in labels and labels[key] == values[0]


@patient
@given(REQUIREMENTS, LABELS, BLANKS)
def test_a_selector_means_what_its_parts_mean(
    requirements: list[Requirement], labels: dict[str, str], blank: str
) -> None:
    text = ",".join(text_of(requirement, blank) for requirement in requirements)
    assert label_selector(text)(labels) == all(naively(each, labels) for each in requirements)


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("gpus>2", {"gpus": "3"}, {"gpus": "2"}),
        ("gpus < 2", {"gpus": "-1"}, {"gpus": "2"}),
        ("gpus>2", {"gpus": "10"}, {"gpus": "many"}),
        ("gpus>2", {"gpus": "10"}, {}),
        ("tier in ()", {"tier": ""}, {"tier": "a"}),
        ("tier in (,a)", {"tier": ""}, {"tier": "b"}),
        ("tier in (a,)", {"tier": ""}, {}),
    ],
)
def test_rarer_forms_are_read_too(text: str, matching: dict[str, str], other: dict[str, str]) -> None:
    assert label_selector(text)(matching)
    assert not label_selector(text)(other)


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "tier,",
        ",tier",
        "tier=a,,zone",
        "tier=a b",
        "tier in a",
        "tier in (a",
        "tier in (a b)",
        "tier notin",
        "tier=(a)",
        "tier>a",
        "!",
        "!!tier",
        "=a",
        "tier=a=b",
        "-tier",
        "tier=-a",
        "/tier",
        "tier is a",
        f"tier={'a' * 64}",
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        label_selector(text)


FIELDS = frozenset({"metadata.name", "status.phase"})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("metadata.name=one", True),
        ("metadata.name==one", True),
        ("metadata.name!=one", False),
        ("metadata.name=one,status.phase!=Failed", True),
        ("metadata.name=one,status.phase=Failed", False),
        ("status.phase=", False),
        (",metadata.name=one,", True),
    ],
)
def test_a_field_selector_compares_fields(text: str, holds: bool) -> None:
    fields = {"metadata.name": "one", "status.phase": "Running"}
    assert field_selector(text, FIELDS)(fields.__getitem__) is holds


@pytest.mark.parametrize("text", ["metadata.name", "metadata.name=a=b", "=a", "metadata.name in (a)"])
def test_a_field_selector_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="neither field=value nor field!=value"):
        field_selector(text, FIELDS)


def test_the_refusal_of_a_field_names_those_that_can_be_selected_by() -> None:
    with pytest.raises(BadRequest, match=r'"spec\.size" \(there are metadata\.name, status\.phase\)'):
        field_selector("spec.size=1", FIELDS)
