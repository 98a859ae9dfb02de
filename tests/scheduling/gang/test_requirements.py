"""What of a worker's pod decides where it can be."""

import pytest

from holdfast.cluster.protocol import JSON
from holdfast.scheduling.ledger import node_capacity
from holdfast.scheduling.resources import NANO
from tests.scheduling.gang.gangs import LABELS, apart, shape
from tests.scheduling.nodes import node

HOST = "kubernetes.io/hostname"


def test_jobs_that_differ_only_in_what_places_no_worker_have_one_shape() -> None:
    one = shape(2, labels={"training-job": "a"}, priority=7, restartPolicy="Never")
    other = shape(2, labels={"training-job": "b"})
    assert one == other
    assert one.digest == other.digest
    assert one.requests == {"nvidia.com/gpu": 2 * NANO, "pods": NANO}


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 1},
        {"gpus": 2, "asks": {"cpu": "1"}},
        {"gpus": 2, "nodeSelector": {"zone": "a"}},
        {"gpus": 2, "tolerations": [{"operator": "Exists"}]},
        {"gpus": 2, "affinity": apart(HOST)},
        {
            "gpus": 2,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
            },
        },
    ],
)
def test_what_places_a_worker_makes_a_shape_of_its_own(change: JSON) -> None:
    assert shape(**change).digest != shape(2).digest


def test_what_is_only_preferred_is_left_to_the_scheduler() -> None:
    wish = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    preferring = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    spread = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
    assert shape(affinity=preferring, topologySpreadConstraints=[spread]) == shape()


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ({}, (HOST,)),
        ({"labelSelector": {}}, (HOST,)),
        ({"labelSelector": {"matchLabels": {"training-job": "other"}}}, ()),
        ({"labelSelector": None}, ()),
        ({"namespaces": ["ml"]}, (HOST,)),
        ({"namespaces": ["other"]}, ()),
        ({"namespaceSelector": {}}, (HOST,)),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, ()),
        ({"namespaces": ["ml"], "namespaceSelector": {"matchLabels": {"team": "x"}}}, (HOST,)),
        ({"mismatchLabelKeys": ["training-job"]}, ()),
        ({"mismatchLabelKeys": ["absent"]}, (HOST,)),
        ({"matchLabelKeys": ["training-job"]}, (HOST,)),
    ],
)
def test_workers_keep_apart_when_their_own_term_means_their_fellows(term: JSON, expected: tuple[str, ...]) -> None:
    assert shape(affinity=apart(HOST, **term), labels=LABELS).anti_affinity_keys == expected


def test_the_same_place_is_named_once_and_a_machine_without_the_label_has_none() -> None:
    twice = shape(affinity=apart("zone", HOST, "zone"))
    assert twice.anti_affinity_keys == (HOST, "zone")
    assert twice.domains(node_capacity(node("a", labels={"zone": "z"}))) == {(HOST, "a"), ("zone", "z")}
    assert twice.domains(node_capacity(node("a"))) == {(HOST, "a")}


def test_a_machine_is_entered_only_when_it_is_ready_and_nothing_bars_it() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    assert shape().can_run_on(node_capacity(node()))
    assert not shape().can_run_on(node_capacity(node(ready=False)))
    assert not shape().can_run_on(node_capacity(node(taints=[taint])))
    tolerant = shape(tolerations=[{"operator": "Exists"}])
    assert tolerant.can_run_on(node_capacity(node(taints=[taint])))
    assert not tolerant.can_run_on(node_capacity(node(ready=False))), (
        "a silent machine starts nothing, tolerated or not"
    )
