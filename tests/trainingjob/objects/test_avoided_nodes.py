"""Nodes that were lost → a pod template that keeps off them, whatever else it asks for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainingjob.objects.job import AVOIDS, avoided_nodes_annotation, with_avoided_nodes

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
FIELD = {"key": "metadata.name", "operator": "NotIn", "values": ["old"]}


def ruling_out(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "NotIn", "values": [node]}


def template(**affinity: Any) -> dict[str, Any]:
    spec = {"containers": [], **({"affinity": affinity} if affinity else {})}
    return {"metadata": {"labels": {"a": "b"}}, "spec": spec}


def terms(made: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


def test_without_lost_nodes_a_template_stays_as_it_is() -> None:
    given = template(nodeAffinity={REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}]}})
    assert with_avoided_nodes(given, ()) == given


@pytest.mark.parametrize("affinity", [{}, {"nodeAffinity": {}}, {"nodeAffinity": {REQUIRED: {}}}])
def test_a_template_that_asks_for_nothing_gets_one_term(affinity: dict[str, Any]) -> None:
    made = with_avoided_nodes(template(**affinity), ["gpu-7", "gpu-3"])
    assert terms(made) == [{"matchFields": [ruling_out("gpu-3"), ruling_out("gpu-7")]}]


def test_every_alternative_gets_the_rules_beside_its_own() -> None:
    asked = [{"matchExpressions": [ZONE]}, {"matchFields": [FIELD]}]
    made = with_avoided_nodes(template(nodeAffinity={REQUIRED: {"nodeSelectorTerms": asked}}), ["gpu-7"])
    assert terms(made) == [
        {"matchExpressions": [ZONE], "matchFields": [ruling_out("gpu-7")]},
        {"matchFields": [FIELD, ruling_out("gpu-7")]},
    ]


def test_preferences_and_neighbours_stay() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    given = template(nodeAffinity=preferred, podAffinity={REQUIRED: []})
    made = with_avoided_nodes(given, ["gpu-7"])
    assert made["spec"]["affinity"]["podAffinity"] == {REQUIRED: []}
    assert made["spec"]["affinity"]["nodeAffinity"].items() >= preferred.items()
    assert made["metadata"] == given["metadata"]


def test_the_template_that_was_given_is_not_changed() -> None:
    asked: list[dict[str, Any]] = [{"matchFields": [FIELD]}]
    given = template(nodeAffinity={REQUIRED: {"nodeSelectorTerms": asked}})
    with_avoided_nodes(given, ["gpu-7"])
    assert asked == [{"matchFields": [FIELD]}]
    assert given == template(nodeAffinity={REQUIRED: {"nodeSelectorTerms": asked}})


@given(st.lists(st.text("abc-", min_size=1), unique=True))
def test_the_note_is_the_same_in_whatever_order_nodes_were_lost(nodes: list[str]) -> None:
    assert avoided_nodes_annotation(nodes) == avoided_nodes_annotation(nodes[::-1])
    assert avoided_nodes_annotation(nodes).get(AVOIDS, "") == ",".join(sorted(nodes))
    assert with_avoided_nodes(template(), nodes) == with_avoided_nodes(template(), nodes[::-1])
