"""What those who wait are told, and how often."""

import pytest

from holdfast.api.core.objects import Node, Pod
from holdfast.scheduling.constraints import Request
from holdfast.scheduling.messages import MESSAGE_INTERVAL_S, MessageThrottle, WaitMessage
from holdfast.scheduling.placement import Placement
from tests.scheduling.nodes import ledger, node, pod
from tests.scheduling.placement.requests import gpu_nodes, placement, request

CLOSED = "needs 2 GPUs on one node; every node that is large enough is closed to it"
NONE_THAT_LARGE = "on one node, and no node is that large: ask for less or add a larger node"
TEAM = [{"key": "team", "value": "x", "effect": "NoSchedule"}]


def waits(it: Request, *things: Node | Pod) -> WaitMessage:
    """What it is told when it is alone."""
    place = placement(ledger(*things))
    place.enqueue(it, 0)
    assert place.run_pass(0).assigned == []
    found = place.wait(it.uid, 0)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    ("it", "things", "message"),
    [
        (request(gpus=2), [], "needs 2 GPUs; no node is there"),
        (request(gpus=1), [], "needs 1 GPU; no node is there"),
        (
            request(gpus=2, nodeSelector={"zone": "x", "arch": "h100"}),
            gpu_nodes(8, 8),
            "no node matches nodeSelector arch=h100,zone=x (of 2 nodes)",
        ),
        (
            request(gpus=4),
            [*gpu_nodes(4, 4), pod("p", "n-0", gpu="2"), pod("q", "n-1", gpu="3")],
            "needs 4 GPUs on one node; the most that a node has free is 2; 1st in line",
        ),
        (
            request(gpus=4),
            [*gpu_nodes(4), pod("p", "n-0", gpu="4")],
            "needs 4 GPUs on one node; no node has any free; 1st in line",
        ),
        (
            request(gpus=4),
            [*gpu_nodes(4), pod("p", "n-0", gpu="9")],
            "needs 4 GPUs on one node; no node has any free; 1st in line",
        ),
        (
            request(gpus=2),
            [
                node("a", gpus=8, unschedulable=True),
                node("b", gpus=8, ready=False),
                node("c", gpus=8, ready=False),
                node("d", gpus=2, taints=TEAM),
                node("e", gpus=1),
            ],
            f"{CLOSED}: 1 cordoned, 2 not ready, 1 with taint team=x",
        ),
    ],
)
def test_what_is_missing_now(it: Request, things: list[Node | Pod], message: str) -> None:
    assert waits(it, *things) == WaitMessage(message=message)


@pytest.mark.parametrize(
    ("it", "things", "message"),
    [
        (
            request(gpus=16),
            gpu_nodes(8, 4),
            "needs 16 GPUs on one node, and the largest has 8: lower gpuCount or add a larger node",
        ),
        (
            request(gpus=16),
            [node("a", gpus=8, ready=False)],
            "needs 16 GPUs on one node, and the largest has 8: lower gpuCount or add a larger node",
        ),
        (
            request(gpus=1),
            [node("a"), node("b", gpus="junk")],
            "needs 1 GPU on one node, and no node has any: add a node with GPUs",
        ),
        (
            request(gpus=2, asks={"cpu": "500", "memory": "1Ti"}),
            gpu_nodes(8),
            f"needs 2 GPUs, 500 CPUs and 1Ti of memory {NONE_THAT_LARGE}",
        ),
        (
            request(gpus=16, nodeSelector={"zone": "x"}),
            [node("a", gpus=8, labels={"zone": "x"}), node("b", gpus=32)],
            "needs 16 GPUs on one node, and the largest has 8: lower gpuCount or add a larger node",
        ),
    ],
)
def test_a_request_that_can_never_fit_is_distinguished(it: Request, things: list[Node | Pod], message: str) -> None:
    assert waits(it, *things) == WaitMessage(message=message, never=True)


def test_a_larger_node_makes_the_impossible_possible() -> None:
    place = placement(kept := ledger(*gpu_nodes(8)))
    place.enqueue(request("w", 16), 0)
    assert place.run_pass(0).assigned == []
    kept.node_changed(None, node("big", gpus=16))
    assert [it.uid for it in place.run_pass(1).assigned] == ["w"]
    assert place.offered_node("w") == "big"


def test_the_message_says_that_nodes_are_reserved_for_a_gang() -> None:
    place = placement(kept := ledger(*gpu_nodes(4, 2)))
    kept.set_gang_demand({}, {"n-0"})
    place.enqueue(request("w", 4), 0)
    place.run_pass(0)
    assert told(place, "w", 0) == (
        "needs 4 GPUs on one node; the most that a node has free is 2 (1 node kept for a TrainingJob); 1st in line"
    )


def told(place: Placement, uid: str, now_s: float) -> str:
    found = place.wait(uid, now_s)
    assert found is not None
    return found[0].message


def crowd(count: int) -> Placement:
    """So many before the one that is looked at, w, on a machine that is full."""
    place = placement(ledger(*gpu_nodes(8), pod("p", "n-0", gpu="8")))
    for number in range(count):
        place.enqueue(request(f"other-{number}", 1 + number % 8, age_s=900), 0)
    place.enqueue(request("w", 4, age_s=1), 0)
    place.run_pass(0)
    return place


@pytest.mark.parametrize(
    ("before", "ending"),
    [
        (0, "no node has any free; 1st in line"),
        (1, "no node has any free; 2nd in line"),
        (9, "no node has any free; 10th in line"),
        (10, "at least 10 workloads are in line before it"),
        (99, "at least 10 workloads are in line before it"),
        (100, "at least 100 workloads are in line before it"),
        (1234, "at least 1000 workloads are in line before it"),
    ],
)
def test_the_position_in_the_queue_is_exact_in_front_and_rough_further_back(before: int, ending: str) -> None:
    assert told(crowd(before), "w", 0) == f"needs 4 GPUs on one node; {ending}"


def test_far_back_in_line_what_keeps_all_nodes_closed_is_not_counted() -> None:
    place = placement(ledger(node("a", gpus=8, unschedulable=True)))
    for number in range(11):
        place.enqueue(request(f"w-{number:02}", 1), 0)
    place.run_pass(0)
    assert told(place, "w-09", 0).endswith("closed to it: 1 cordoned")
    assert told(place, "w-10", 0).endswith("closed to it: cordoned, not ready or tainted")


def test_the_position_is_by_importance_and_age_whatever_they_ask_for() -> None:
    place = placement(ledger(*gpu_nodes(1), pod("p", "n-0", gpu="1")))
    place.enqueue(request("young", 1, age_s=1), 0)
    place.enqueue(request("dear", 1, "random", priority=5), 0)
    place.enqueue(request("old", 1, "costOptimized", age_s=100), 0)
    place.run_pass(0)
    assert [told(place, uid, 0)[-11:] for uid in ("dear", "old", "young")] == [
        "1st in line",
        "2nd in line",
        "3rd in line",
    ]


def test_words_change_at_most_once_a_minute_and_the_first_come_at_once() -> None:
    place = crowd(2)
    assert place.wait("w", 5) == (
        WaitMessage(message=f"{NEEDS}; no node has any free; 3rd in line"),
        MESSAGE_INTERVAL_S,
    )
    place.leave("other-0")
    assert place.wait("w", 25) == (
        WaitMessage(message=f"{NEEDS}; no node has any free; 3rd in line"),
        MESSAGE_INTERVAL_S - 20,
    )
    place.leave("other-1")
    assert place.wait("w", 5 + MESSAGE_INTERVAL_S) == (
        WaitMessage(message=f"{NEEDS}; no node has any free; 1st in line"),
        MESSAGE_INTERVAL_S,
    )


NEEDS = "needs 4 GPUs on one node"


def test_a_change_that_is_undone_is_never_reported() -> None:
    telling = MessageThrottle()
    one, other = WaitMessage(message="one"), WaitMessage(message="other")
    assert [telling.throttle("w", wait, now_s)[0] for wait, now_s in ((one, 0), (other, 10), (one, 70))] == [
        one,
        one,
        one,
    ]
    assert telling.throttle("w", other, 80) == (other, MESSAGE_INTERVAL_S)


def test_a_workload_that_waits_anew_is_reported_anew() -> None:
    telling = MessageThrottle()
    telling.throttle("w", WaitMessage(message="one"), 0)
    telling.forget("w")
    assert telling.throttle("w", WaitMessage(message="other"), 1) == (WaitMessage(message="other"), MESSAGE_INTERVAL_S)


def test_reported_messages_are_forgotten_with_the_workloads_that_left() -> None:
    place = crowd(3)
    for uid in ("w", "other-0"):
        place.wait(uid, 0)
        place.leave(uid)
    assert place._throttle._reported == {}
