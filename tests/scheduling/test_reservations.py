"""Room that is given away before the scheduler knows of it, seen by every kind that uses the ledger."""

from collections.abc import Callable
from math import inf
from random import Random

import pytest

from holdfast.scheduling.gang import GangQueue, run_admission
from holdfast.scheduling.ledger import GPU, Ledger
from holdfast.scheduling.placement import Placement
from holdfast.scheduling.resources import NANO
from tests.scheduling.gang.gangs import NOW, admitted, gang
from tests.scheduling.nodes import ledger, node, pod
from tests.scheduling.placement.requests import free_gpus, pod_of, request

W = request("w", 2)


def gpus(kept: Ledger, name: str = "gpu-1") -> int:
    return kept.free(name).get(GPU, 0) // NANO


def assumed(until_s: float = inf) -> Ledger:
    kept = ledger(node(gpus="8"))
    kept.reserve(W.reservation_id, "gpu-1", W.shape.requests, until_s)
    return kept


def test_what_is_assumed_is_not_free() -> None:
    kept = assumed()
    assert gpus(kept) == free_gpus(kept, "gpu-1") == 6
    kept.release(W.reservation_id)
    assert gpus(kept) == 8


def test_a_gang_does_not_get_what_is_assumed_for_a_workload() -> None:
    four = gang("bert", 4, gpus=2)
    assert admitted([four], ledger(node(gpus="8"))) == {"bert"}
    assert admitted([four], assumed()) == set()


def test_the_pod_that_comes_is_counted_once() -> None:
    kept = assumed()
    kept.pod_changed(None, pod_of(W, "", phase="Pending"))
    assert gpus(kept) == 6
    kept.pod_changed(pod_of(W, "", phase="Pending"), pod_of(W, "gpu-1"))
    assert (gpus(kept), dict(kept.reservations)) == (6, {})
    kept.pod_changed(pod_of(W, "gpu-1"), pod_of(W, "gpu-1", phase="Succeeded"))
    assert gpus(kept) == 8


def test_no_moment_of_the_pods_coming_shows_more_capacity_than_there_is() -> None:
    kept, seen = assumed(), []
    kept.listeners.append(lambda name: seen.append(gpus(kept, name)))
    kept.pod_changed(None, pod_of(W, "gpu-1"))
    assert seen == [4, 6]


def test_an_assumption_about_a_pod_that_is_bound_already_counts_nothing() -> None:
    kept = ledger(node(gpus="8"), pod_of(W, "gpu-1"))
    kept.reserve(W.reservation_id, "gpu-1", W.shape.requests, inf)
    assert (gpus(kept), dict(kept.reservations)) == (6, {})


def test_after_the_pod_is_gone_the_same_can_be_assumed_again() -> None:
    kept = ledger(node(gpus="8"), pod_of(W, "gpu-1"))
    kept.pod_changed(pod_of(W, "gpu-1"), None)
    kept.reserve(W.reservation_id, "gpu-1", W.shape.requests, inf)
    assert gpus(kept) == 6


def test_a_mark_that_somebody_moves_to_another_pod_is_followed() -> None:
    kept = ledger(node(gpus="8"), pod_of(W, "gpu-1"))
    unmarked = pod("w-pod", gpu="2")
    kept.pod_changed(pod_of(W, "gpu-1"), unmarked)
    kept.reserve(W.reservation_id, "gpu-1", W.shape.requests, inf)
    assert gpus(kept) == 4
    kept.pod_changed(unmarked, None)
    assert gpus(kept) == 6


def test_assuming_a_pod_elsewhere_gives_the_first_capacity_back() -> None:
    kept = ledger(node("a", gpus="8"), node("b", gpus="8"))
    for machine in ("a", "b", "b"):
        kept.reserve(W.reservation_id, machine, W.shape.requests, inf)
    assert (gpus(kept, "a"), gpus(kept, "b")) == (8, 6)


@pytest.mark.parametrize(("now_s", "left"), [(9.0, 6), (10.0, 8), (1e9, 8)])
def test_an_assumption_that_nothing_came_of_ends_with_its_time(now_s: float, left: int) -> None:
    kept = assumed(until_s=10.0)
    assert kept.expire(now_s) == ([W.reservation_id] if left == 8 else [])
    assert gpus(kept) == left


def test_it_is_known_when_the_next_one_ends() -> None:
    assert assumed().next_end_s is None
    kept = assumed()
    kept.reserve("b", "gpu-1", W.shape.requests, 20.0)
    kept.reserve("a", "gpu-1", W.shape.requests, 10.0)
    assert kept.next_end_s == 10.0
    assert kept.expire(15.0) == ["a"]
    assert kept.next_end_s == 20.0


def test_what_never_ends_by_itself_leaves_nothing_behind_when_it_is_released() -> None:
    kept = assumed()
    kept.release(W.reservation_id)
    assert (kept._expirations, kept._reserved) == ([], {})


def test_one_that_was_renewed_ends_with_its_new_time() -> None:
    kept = assumed(until_s=10.0)
    kept.reserve(W.reservation_id, "gpu-1", W.shape.requests, 20.0)
    assert kept.expire(15.0) == []
    assert gpus(kept) == 6
    assert kept.expire(20.0) == [W.reservation_id]


def test_a_machine_that_comes_back_still_has_what_was_assumed_there() -> None:
    kept = assumed()
    kept.node_changed(node(gpus="8"), None)
    kept.node_changed(None, node(gpus="8"))
    assert gpus(kept) == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept.reserve("other", "gpu-1", W.shape.requests, inf),
        lambda kept: kept.release(W.reservation_id),
        lambda kept: kept.expire(inf),
    ],
)
def test_the_version_shows_that_something_has_changed(change: Callable[[Ledger], object]) -> None:
    kept = assumed(until_s=10.0)
    seen: list[str] = []
    kept.listeners.append(seen.append)
    version = kept.version
    change(kept)
    assert kept.version > version
    assert seen == ["gpu-1"]


def test_releasing_what_was_never_assumed_changes_nothing() -> None:
    kept = assumed()
    version = kept.version
    kept.release("stranger")
    assert kept.version == version


def test_nothing_is_left_behind_by_those_that_came_and_went() -> None:
    kept = ledger(node(gpus="8"))
    for number in range(3):
        it = request(f"w-{number}", 2)
        kept.reserve(it.reservation_id, "gpu-1", it.shape.requests, 5.0)
        kept.pod_changed(None, pod_of(it, "gpu-1"))
        kept.pod_changed(pod_of(it, "gpu-1"), None)
    kept.expire(5.0)
    assert (dict(kept.reservations), kept._reserved, kept._expirations, kept._bound_pods) == ({}, {}, [], {})


def test_a_workload_does_not_get_what_a_gang_that_may_start_is_expected_to_take() -> None:
    kept = ledger(node("a", gpus="4"), node("b", gpus="8"))
    look = run_admission([gang("bert", 3, gpus=2)], kept, NOW)
    kept.set_gang_demand(look.demand, look.held_nodes)
    assert look.decisions["bert"].admitted
    assert (free_gpus(kept, "a"), free_gpus(kept, "b")) == (2, 4)
    assert (gpus(kept, "a"), gpus(kept, "b")) == (4, 8)  # for the gangs' next look, which counts them itself


def test_gangs_that_have_their_machines_are_expected_nowhere() -> None:
    kept = ledger(node("a", gpus="4"), pod(on="a", gpu="2"))
    look = run_admission([gang("bert", 1, gpus=2, standing="started", machines=("a",))], kept, NOW)
    kept.set_gang_demand(look.demand, look.held_nodes)
    assert free_gpus(kept, "a") == 2


def test_machines_are_kept_for_a_gang_that_has_waited_long() -> None:
    kept = ledger(node("a", gpus="4"))
    look = run_admission([gang("bert", 1, gpus=4, age_s=3600), gang("ernie", 1, gpus=2)], kept, NOW)
    assert look.held_nodes == set()
    kept.pod_changed(None, pod(on="a", gpu="1"))
    look = run_admission([gang("bert", 1, gpus=4, age_s=3600)], kept, NOW)
    kept.set_gang_demand(look.demand, look.held_nodes)
    assert kept.nodes_held_for_gangs == {"a"}


def test_listeners_are_called_only_where_expectations_changed_and_gangs_are_not() -> None:
    kept = ledger(node("a", gpus="4"), node("b", gpus="4"), node("c", gpus="4"))
    seen: list[str] = []
    kept.listeners.append(seen.append)
    version = kept.version
    one, two = {GPU: NANO}, {GPU: 2 * NANO}
    kept.set_gang_demand({"a": one, "b": one})
    kept.set_gang_demand({"a": one, "b": two}, {"c"})
    kept.set_gang_demand({})
    assert seen == ["a", "b", "b", "c", "a", "b", "c"]
    assert kept.version == version


def test_what_gangs_are_expected_to_take_is_asked_for_before_a_workload_gets_anything() -> None:
    kept = ledger(node("a", gpus="4"))
    queue, placement = (
        GangQueue(kept),
        Placement(kept, Random(0), reservation_timeout_s=60.0, starvation_timeout_s=60.0),
    )
    queue.put(gang("bert", 1, gpus=3))
    assert queue.catch_up(10)
    kept.update_gang_demand = lambda: kept.set_gang_demand(queue.expected_demand())
    assert queue.start_all() == ["bert"]
    placement.enqueue(it := request("w", 2), 0.0)
    placement.run_pass(0.0)
    assert placement.offered_node(it.uid) is None, "it would get what the gang was promised"
    queue.remove("bert")
    placement.run_pass(0.0)
    assert placement.offered_node(it.uid) == "a"
