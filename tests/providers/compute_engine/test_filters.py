"""Filters and partial answers, as Google describes them."""

from typing import Any

import pytest

from tests.providers.compute_engine import filters, partial
from tests.providers.compute_engine.description import Description

ITEM: dict[str, Any] = {
    "name": "m-1",
    "status": "RUNNING",
    "labels": {"holdfast-cluster": "c1", "empty": ""},
    "scheduling": {"automaticRestart": False},
    "targetLink": "https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/m-1",
}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("name = m-1", True),
        ("name=m-1", True),
        ('name = "m-1"', True),
        ("name != m-1", False),
        ('labels.holdfast-cluster = "c1"', True),
        ("labels.holdfast-cluster = c2", False),
        ("labels.other = c1", False),
        ("labels.holdfast-cluster:*", True),
        ("labels.other:*", False),
        ("name : m", True),
        ("name : x", False),
        ("scheduling.automaticRestart = false", True),
        ("(status = RUNNING) (name = m-1)", True),
        ("(status = RUNNING) (name = m-2)", False),
        ("status = RUNNING AND name = m-2", False),
        ("status = STOPPING OR name = m-1", True),
        ("status = STOPPING OR (name = m-1 AND status = RUNNING)", True),
        ("name eq m-.*", True),
        ("name eq m-", False),
        ("name ne m-.*", False),
        ('targetLink eq ".*/instances/(m-1|m-2)"', True),
        ('targetLink eq ".*/instances/(m-2|m-3)"', False),
        ("targetLink eq '.*/instances/m-1'", True),
    ],
)
def test_a_filter_leaves_what_fits(text: str, fits: bool) -> None:
    assert filters.parse(text)(ITEM) == fits


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name =",
        "(name = m-1",
        "name = m-1)",
        "name > m-1",
        "name eq m-1 AND status = RUNNING",
        "(name eq m.*) (status eq R.*)",
        "= = =  =",
    ],
)
def test_what_google_does_not_understand_is_refused(text: str) -> None:
    with pytest.raises(filters.BadFilter):
        filters.parse(text)


ANSWER = {
    "items": {
        "zones/a": {"instances": [{"name": "m", "id": "1", "network": {"ip": "x", "nat": "y"}}]},
        "zones/b": {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "none"}},
    },
    "nextPageToken": "t",
    "kind": "k",
}


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ("nextPageToken", {"nextPageToken": "t"}),
        ("nextPageToken,kind", {"nextPageToken": "t", "kind": "k"}),
        ("items/*/warning/code", {"items": {"zones/a": {}, "zones/b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}}),
        (
            "items/*(instances(name,network/ip),warning/code),absent",
            {
                "items": {
                    "zones/a": {"instances": [{"name": "m", "network": {"ip": "x"}}]},
                    "zones/b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
                }
            },
        ),
        ("items", {"items": ANSWER["items"]}),
    ],
)
def test_a_partial_answer_has_the_fields_that_were_asked_for(fields: str, left: object) -> None:
    assert partial.select(ANSWER, partial.parse(fields)) == left


@pytest.mark.parametrize("fields", ["", "a,", "a//b", "a(b", "a)b", "(a)(", "a(b)c", "/a"])
def test_fields_that_can_not_be_read(fields: str) -> None:
    with pytest.raises(partial.BadFields):
        partial.parse(fields)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("items/*/instances(name,networkInterfaces(networkIP,accessConfigs/natIP)),unreachables,nextPageToken", ""),
        ("items/*/instances(nmae)", "fields/items/*/instances/nmae: there is no such field"),
        ("items/instances", "fields/items/instances: there is no such field"),
        ("unreachable", "fields/unreachable: there is no such field"),
    ],
)
def test_fields_that_the_answer_does_not_have_are_found(contract: Description, fields: str, problem: str) -> None:
    schema = {"$ref": "InstanceAggregatedList"}
    found = list(partial.selection_problems(contract, partial.parse(fields), schema))
    assert found == ([problem] if problem else [])
