"""Which machines a pod asks for, and which keep it away."""

import msgspec
import pytest

from holdfast.api.core.objects import NodeSpec, PodSpec
from holdfast.cluster.protocol import JSON
from holdfast.scheduling.constraints import CORDONED, matches_node, untolerated_taint

GPU = {"key": "gpu", "value": "present", "effect": "NoSchedule"}
GOING = {"key": "going", "effect": "NoExecute"}
EXISTS = {"operator": "Exists"}


@pytest.mark.parametrize(
    ("machine", "tolerations", "expected"),
    [
        ({}, [], None),
        ({"unschedulable": True}, [], "node.kubernetes.io/unschedulable"),
        ({"unschedulable": True}, [EXISTS], None),
        ({"unschedulable": True}, [{"key": CORDONED.key, **EXISTS}], None),
        ({"taints": [GPU]}, [], "gpu"),
        ({"taints": [GPU]}, [{"key": "gpu", **EXISTS}], None),
        ({"taints": [GPU, GOING]}, [{"key": "gpu", **EXISTS}], "going"),
        ({"taints": [{**GPU, "effect": "PreferNoSchedule"}]}, [], None),
        ({"taints": [GPU], "unschedulable": True}, [{"key": CORDONED.key, **EXISTS}], "gpu"),
    ],
)
def test_the_first_mark_that_is_not_tolerated_keeps_a_pod_away(
    machine: JSON, tolerations: list[JSON], expected: str | None
) -> None:
    pod = msgspec.convert({"tolerations": tolerations}, PodSpec)
    found = untolerated_taint(pod.tolerations, msgspec.convert(machine, NodeSpec))
    assert (found.key if found else None) == expected


def test_a_node_that_people_cordoned_is_distinguished_from_one_with_the_taint_alone() -> None:
    assert untolerated_taint((), NodeSpec(unschedulable=True, taints=(CORDONED,))) is CORDONED


def required(key: str, value: str) -> JSON:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"zone": "a", "gpu": "a100"}}, False),
        ({"affinity": required("zone", "a")}, True),
        ({"affinity": required("zone", "b")}, False),
        ({"affinity": required("zone", "a"), "nodeSelector": {"zone": "b"}}, False),
    ],
)
def test_selector_and_required_affinity_must_both_hold(spec: JSON, expected: bool) -> None:
    assert matches_node(msgspec.convert(spec, PodSpec), {"zone": "a"}, "m") is expected
