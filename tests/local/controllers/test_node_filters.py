"""Why a pod may not be on a machine."""

import pytest

from holdfast.api.core.objects import Node
from holdfast.cluster.protocol import JSON
from holdfast.local.controllers.scheduler import filter_failures
from holdfast.scheduling.resources import parse_nanos, pod_requests
from tests.local.controllers.things import asking, node, pod

GPU = {"key": "gpu", "value": "present", "effect": "NoSchedule"}
EXISTS = {"operator": "Exists"}


def required(*terms: JSON) -> JSON:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


IN_ZONE_A = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
NAMED_M = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}


@pytest.mark.parametrize(
    ("machine", "spec", "expected"),
    [
        (node(), {}, ()),
        (node(unschedulable=True), {}, ("node(s) were unschedulable",)),
        (node(unschedulable=True), {"tolerations": [EXISTS]}, ()),
        (node(taints=[GPU]), {}, ("node(s) had untolerated taint {gpu: present}",)),
        (node(taints=[GPU]), {"tolerations": [EXISTS]}, ()),
        (node(taints=[{**GPU, "effect": "PreferNoSchedule"}]), {}, ()),
        (node(taints=[{**GPU, "effect": "NoExecute"}]), {}, ("node(s) had untolerated taint {gpu: present}",)),
        (node(taints=[{"key": "k", "effect": "NoSchedule"}, GPU]), {}, ("node(s) had untolerated taint {k: }",)),
        (node(labels={"zone": "a"}), {"nodeSelector": {"zone": "a"}}, ()),
        (node(), {"nodeSelector": {"zone": "a"}}, ("node(s) didn't match Pod's node affinity/selector",)),
        (node(labels={"zone": "a"}), {"affinity": required(IN_ZONE_A)}, ()),
        (node(), {"affinity": required(IN_ZONE_A, NAMED_M)}, ()),
        (node("n"), {"affinity": required(IN_ZONE_A, NAMED_M)}, ("node(s) didn't match Pod's node affinity/selector",)),
        (
            node(labels={"zone": "a"}),
            {"nodeSelector": {"zone": "b"}, "affinity": required(IN_ZONE_A)},
            ("node(s) didn't match Pod's node affinity/selector",),
        ),
        (node(), asking(cpu="4", memory="8Gi"), ()),
        (node(), asking(cpu="4001m"), ("Insufficient cpu",)),
        (node(), asking(cpu="5", memory="9Gi"), ("Insufficient cpu", "Insufficient memory")),
        (node(), asking(nvidia__gpu="1"), ("Insufficient nvidia/gpu",)),
        (node(), asking(nvidia__gpu="0"), ()),
        (node(room={"pods": "0"}), {}, ("Too many pods",)),
        (node(unschedulable=True, taints=[GPU]), asking(cpu="99"), ("node(s) were unschedulable",)),
    ],
)
def test_the_first_obstacle_is_named(machine: Node, spec: JSON, expected: tuple[str, ...]) -> None:
    wanting = pod(**spec)
    assert filter_failures(wanting, machine, pod_requests(wanting.spec), {}) == expected


def test_what_others_have_taken_is_not_there() -> None:
    wanting = pod(**asking(cpu="2"))
    assert filter_failures(wanting, node(), pod_requests(wanting.spec), {"cpu": parse_nanos("2")}) == ()
    assert filter_failures(wanting, node(), pod_requests(wanting.spec), {"cpu": parse_nanos("2001m")}) == (
        "Insufficient cpu",
    )
