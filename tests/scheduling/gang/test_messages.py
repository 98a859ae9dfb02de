"""What a job that can't start is told."""

from typing import Any

import pytest

from holdfast.api.core.objects import Node, Pod
from holdfast.cluster.protocol import JSON
from tests.scheduling.gang.gangs import apart, gang, shape, verdict
from tests.scheduling.nodes import ledger, node, pod

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [IN_ZONE]}}}


def machines(count: int, **facts: Any) -> list[Node]:
    return [node(f"gpu-{number}", **facts) for number in range(1, count + 1)]


def taking(count: int, **requests: str) -> list[Pod]:
    """A pod on each of the first machines."""
    return [pod(f"p-{number}", f"gpu-{number}", **requests) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("things", "workers", "asked", "expected"),
    [
        ([], 2, {"gpus": 1}, "no node is there"),
        (
            machines(4, gpus=2) + taking(1, gpu="1"),
            4,
            {"gpus": 2},
            "needs 4 × 2 GPUs; 3 nodes have 2 free",
        ),
        (machines(2, gpus=2) + taking(2, gpu="1"), 1, {"gpus": 2}, "needs 1 × 2 GPUs; no node has 2 free"),
        (machines(2, gpus=1) + taking(1, gpu="1"), 2, {"gpus": 1}, "needs 2 × 1 GPU; 1 node has 1 free"),
        (
            machines(2, gpus=8) + taking(1, gpu="5"),
            6,
            {"gpus": 2},
            "needs 6 × 2 GPUs; 2 nodes have room for 5",
        ),
        (
            machines(3, gpus=8) + taking(3, cpu="6"),
            3,
            {"gpus": 2, "asks": {"cpu": "4"}},
            "needs 3 × 4 CPUs; no node has 4 free",
        ),
        (
            machines(2) + taking(1, memory="48Gi"),
            2,
            {"asks": {"memory": "40Gi", "cpu": "500m"}},
            "needs 2 × 40Gi of memory; 1 node has 40Gi free",
        ),
        (
            [node("a", gpus=4), node("b", gpus=4), pod("p", "a", gpu="4"), pod("q", "b", cpu="8")],
            1,
            {"gpus": 4, "asks": {"cpu": "2", "memory": "1536Mi"}},
            "needs 1 × 4 GPUs, 2 CPUs and 1.5Gi of memory; no node has all of it free",
        ),
        (
            machines(2, room={"cpu": "2"}) + taking(1, cpu="1"),
            2,
            {"asks": {"cpu": "1"}, "sidecar": {"cpu": "50m", "memory": "128Mi"}},
            "needs 2 × (1 CPU + 0.05 for the sidecar); 1 node has 1.05 free",
        ),
        (
            [*machines(1, room={"cpu": "1"}), *taking(1, cpu="1")],
            1,
            {"sidecar": {"cpu": "50m"}},
            "needs 1 × 0.05 CPUs for the sidecar; no node has 0.05 free",
        ),
        (
            [*machines(1, room={"pods": "2"}), pod("p"), pod("q")],
            1,
            {},
            "needs room for 1 pod; no node has room for one more",
        ),
        (
            machines(2, room={"rdma/hca": "1"}) + taking(1, **{"rdma/hca": "1"}),
            2,
            {"asks": {"rdma/hca": "1"}},
            "needs 2 × 1 rdma/hca; 1 node has 1 free",
        ),
        (
            [*machines(3, gpus=2), node("gpu-4", gpus=2, unschedulable=True), *taking(1, gpu="2")],
            4,
            {"gpus": 2},
            "needs 4 × 2 GPUs; 2 nodes have 2 free; not counted: 1 cordoned",
        ),
    ],
)
def test_what_is_missing_is_named_and_on_how_many_machines_it_is_there(
    things: list[Node | Pod], workers: int, asked: JSON, expected: str
) -> None:
    told = verdict(gang(workers=workers, each=shape(**asked)), ledger(*things))
    assert told.message == expected
    assert (told.admitted, told.impossible, told.position) == (False, False, 1)


@pytest.mark.parametrize(
    ("things", "workers", "asked", "expected"),
    [
        (
            machines(2, gpus=8),
            1,
            {"gpus": 16},
            "needs 16 GPUs per worker; the largest node has 8: lower gpusPerWorker or add a node",
        ),
        (
            machines(2),
            1,
            {"gpus": 1},
            "needs 1 GPU per worker; no node has any: add a node with GPUs, or write gpusPerWorker: 0",
        ),
        (
            machines(2),
            2,
            {"asks": {"cpu": "64"}},
            "needs 64 CPUs per worker; the largest node has 8: lower resources or add a node",
        ),
        (
            machines(2, room={"memory": "32654312Ki"}),
            2,
            {"asks": {"memory": "32Gi"}},
            "needs 32Gi of memory per worker; the largest node has 31.14Gi: lower resources or add a node",
        ),
        (
            [node("a", gpus=8, room={"cpu": "4"}), node("b", gpus=2)],
            1,
            {"gpus": 8, "asks": {"cpu": "6"}},
            "needs 8 GPUs and 6 CPUs per worker; no node is large enough for all of it: lower resources or add a node",
        ),
        (
            machines(3, gpus=2),
            4,
            {"gpus": 2},
            "needs 4 × 2 GPUs; 3 nodes have 2 free; even on empty nodes only 3 fit: lower numWorkers or add nodes",
        ),
        (
            [*machines(3, gpus=2), *taking(2, gpu="1")],
            4,
            {"gpus": 2},
            "needs 4 × 2 GPUs; 1 node has 2 free; even on empty nodes only 3 fit: lower numWorkers or add nodes",
        ),
        (
            machines(1, gpus=2, unschedulable=True),
            4,
            {"gpus": 1},
            (
                "the only matching node is cordoned, not ready or has taints that the job does not tolerate: "
                "1 cordoned; even on empty nodes only 2 fit: lower numWorkers or add nodes"
            ),
        ),
        (
            machines(1, gpus=2),
            4,
            {"gpus": 1},
            "needs 4 × 1 GPU; 1 node has room for 2; even on empty nodes only 2 fit: lower numWorkers or add nodes",
        ),
        (
            machines(2, gpus=8),
            3,
            {"gpus": 1, "affinity": apart("kubernetes.io/hostname")},
            (
                "needs 3 × 1 GPU, no two in one kubernetes.io/hostname (podAntiAffinity); 2 can be placed; "
                "even on empty nodes only 2 fit: lower numWorkers or add nodes"
            ),
        ),
    ],
)
def test_a_request_that_can_never_fit_gets_what_to_change(
    things: list[Node | Pod], workers: int, asked: JSON, expected: str
) -> None:
    told = verdict(gang(workers=workers, each=shape(**asked)), ledger(*things))
    assert told.message == expected
    assert (told.admitted, told.impossible) == (False, True)


@pytest.mark.parametrize(
    ("things", "asked", "expected"),
    [
        (machines(3), {"nodeSelector": {"gpu": "a100"}}, "no node matches nodeSelector gpu=a100 (of 3 nodes)"),
        (
            machines(1),
            {"nodeSelector": {"zone": "b", "gpu": "a100"}},
            "no node matches nodeSelector gpu=a100,zone=b (of 1 node)",
        ),
        (machines(3), {"affinity": AFFINITY}, "no node matches the required node affinity (of 3 nodes)"),
        (
            machines(3, labels={"gpu": "a100"}),
            {"nodeSelector": {"gpu": "a100"}, "affinity": AFFINITY},
            "no node matches nodeSelector gpu=a100 and the required node affinity (of 3 nodes)",
        ),
        (
            [*machines(3, gpus=2, taints=[TAINT]), node("cpu-1")],
            {"gpus": 2},
            (
                "all 3 matching nodes are cordoned, not ready or have taints that the job does not tolerate: "
                "3 with taint nvidia.com/gpu=present"
            ),
        ),
        (
            [
                node("a", gpus=2, unschedulable=True),
                node("b", gpus=2, ready=False),
                node("c", gpus=2, ready=False, taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]),
                node("d", gpus=2, taints=[{"key": "holdfast.dev/preempted", "effect": "NoSchedule"}]),
            ],
            {"gpus": 2},
            (
                "all 4 matching nodes are cordoned, not ready or have taints that the job does not tolerate: "
                "1 cordoned, 2 not ready, 1 with taint holdfast.dev/preempted"
            ),
        ),
        (
            [node("a", gpus=2, unschedulable=True)],
            {"gpus": 2},
            "the only matching node is cordoned, not ready or has taints that the job does not tolerate: 1 cordoned",
        ),
    ],
)
def test_machines_that_are_there_but_not_for_the_job_are_explained(
    things: list[Node], asked: JSON, expected: str
) -> None:
    told = verdict(gang(each=shape(**asked)), ledger(*things))
    assert told.message == expected
    assert (told.admitted, told.impossible) == (False, False)


def test_the_message_for_workers_that_keep_apart_says_how_many_can_be_placed() -> None:
    it = gang(workers=3, each=shape(2, affinity=apart("kubernetes.io/hostname")))
    told = verdict(it, ledger(*machines(3, gpus=8), pod("p", "gpu-1", gpu="8")))
    assert told.message == ("needs 3 × 2 GPUs, no two in one kubernetes.io/hostname (podAntiAffinity); 2 can be placed")


def test_a_message_does_not_change_with_machines_that_the_job_has_no_use_for() -> None:
    it = gang(workers=2, each=shape(2))
    things: list[Node | Pod] = [*machines(2, gpus=2), pod("p", "gpu-1", gpu="1")]
    before = verdict(it, ledger(*things)).message
    others: list[Node | Pod] = [
        node("cpu-1"),
        pod("q", "cpu-1", cpu="3"),
        pod("r", "gpu-2", cpu="1"),
        node("gpu-9", gpus=1),
    ]
    assert verdict(it, ledger(*things, *others)).message == before
