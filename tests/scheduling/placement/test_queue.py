"""Who gets a machine first, and who goes on waiting."""

from collections.abc import Callable

import pytest
from msgspec import structs

from holdfast.scheduling import placement as placement_module
from holdfast.scheduling.constraints import Request
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.placement import MAX_IDLE_INDEXES, PassResult, Placement
from tests.scheduling.nodes import ledger, node, pod
from tests.scheduling.placement.requests import (
    ASSUMED_S,
    PATIENCE_S,
    free_gpus,
    gpu_nodes,
    placed,
    placement,
    pod_of,
    request,
)


def standing(kept: Ledger, *requests: Request, now_s: float = 0) -> Placement:
    place = placement(kept)
    for each in requests:
        place.enqueue(each, now_s)
    return place


def names(given: list[Request]) -> list[str]:
    return [each.uid for each in given]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([request("young", age_s=1), request("old", age_s=100)], {"old": "n-0"}),
        ([request("old", age_s=100), request("dear", age_s=1, priority=1)], {"dear": "n-0"}),
        ([request("old", age_s=100), request("cheap", age_s=500, priority=-1)], {"old": "n-0"}),
        ([request("b"), request("a")], {"a": "n-0"}),
        ([request("large", 2, priority=9), request("small", 1)], {"small": "n-0"}),
        ([request("random", strategy="random"), request("old", age_s=100)], {"old": "n-0"}),
        ([request("huge", 64, priority=9), request("w")], {"w": "n-0"}),
    ],
)
def test_one_gpu_goes_to_the_most_important_then_the_oldest_that_fits(
    requests: list[Request], expected: dict[str, str]
) -> None:
    assert placed(requests, ledger(*gpu_nodes(1))) == expected


def test_a_look_gives_machines_until_nothing_fits_any_more() -> None:
    line = [request(f"w-{number}", 2, age_s=100 - number) for number in range(9)]
    assert placed(line, ledger(*gpu_nodes(8, 8))) == {
        "w-0": "n-0",
        "w-1": "n-1",
        "w-2": "n-0",
        "w-3": "n-1",
        "w-4": "n-0",
        "w-5": "n-1",
        "w-6": "n-0",
        "w-7": "n-1",
    }


def test_workloads_that_got_a_node_are_queued_the_most_important_first() -> None:
    line = [request("c", 1, priority=1), request("a", 2), request("b", 1, "random", priority=2)]
    assert names(standing(ledger(*gpu_nodes(8)), *line).run_pass(0).assigned) == ["b", "c", "a"]


def test_when_gpus_free_up_the_right_one_starts_with_the_next_look() -> None:
    kept = ledger(*gpu_nodes(2), holder := pod("p", "n-0", gpu="2"))
    place = standing(kept, request("old", 2, age_s=100), request("dear", 2, priority=1), request("young", 2, age_s=1))
    assert place.run_pass(0).assigned == []
    kept.pod_changed(holder, None)
    assert names(place.run_pass(1).assigned) == ["dear"]
    assert place.offered_node("dear") == "n-0"
    assert place.offered_node("old") is None
    assert place.run_pass(2).assigned == []


def test_what_was_given_is_not_given_twice_and_comes_back_when_it_is_not_wanted() -> None:
    first, second = request("a", 2), request("b", 2)
    place = standing(kept := ledger(*gpu_nodes(2)), first, second)
    assert names(place.run_pass(0).assigned) == ["a"]
    place.enqueue(first, 1)  # asked again before it has taken it
    assert place.offered_node("a") == "n-0"
    assert place.run_pass(1).assigned == []
    place.leave("a")
    assert place.offered_node("a") is None
    assert names(place.run_pass(2).assigned) == ["b"]
    assert free_gpus(kept, "n-0") == 0


def test_a_workload_with_another_request_gives_back_its_node() -> None:
    place = standing(kept := ledger(*gpu_nodes(4)), request("a", 2))
    place.run_pass(0)
    place.enqueue(request("a", 3), 1)
    assert place.offered_node("a") is None
    assert free_gpus(kept, "n-0") == 4
    assert names(place.run_pass(1).assigned) == ["a"]
    assert free_gpus(kept, "n-0") == 1


def test_a_workload_whose_request_changes_while_it_waits_is_placed_by_the_new_one() -> None:
    place = standing(ledger(*gpu_nodes(2)), request("a", 4), request("b", 2, age_s=1))
    place.enqueue(request("a", 2), 1)
    assert names(place.run_pass(1).assigned) == ["a"]


def test_a_workload_that_left_the_queue_gets_nothing() -> None:
    place = standing(ledger(*gpu_nodes(2)), request("a"))
    place.leave("a")
    place.leave("a")
    assert place.run_pass(0).assigned == []
    assert place.wait("a", 0) is None


def test_what_is_granted_does_not_expire_before_it_is_taken() -> None:
    place = standing(kept := ledger(*gpu_nodes(2)), it := request("a", 2))
    place.run_pass(0)
    place.run_pass(ASSUMED_S * 10)
    assert free_gpus(kept, "n-0") == 0
    place.confirm(it, "n-0", 1000)
    assert place.offered_node("a") is None
    place.run_pass(1000 + ASSUMED_S - 1)
    assert free_gpus(kept, "n-0") == 0
    place.run_pass(1000 + ASSUMED_S)
    assert free_gpus(kept, "n-0") == 2


def test_its_pod_makes_it_good() -> None:
    place = standing(kept := ledger(*gpu_nodes(2)), it := request("a", 2), other := request("b", 2))
    place.run_pass(0)
    place.confirm(it, "n-0", 0)
    kept.pod_changed(None, bound := pod_of(it, "n-0"))
    assert place.run_pass(ASSUMED_S).assigned == []
    kept.pod_changed(bound, pod_of(it, "n-0", phase="Failed"))
    assert names(place.run_pass(ASSUMED_S).assigned) == [other.uid]


def test_after_a_restart_written_assignments_count_before_any_new_one() -> None:
    written, bound, waiting = request("a", 2), request("b", 2), request("c", 2)
    kept = ledger(*gpu_nodes(4, 2), pod_of(bound, "n-0"))
    place = standing(kept, waiting)
    place.confirm(written, "n-0", 0)
    place.confirm(bound, "n-0", 0)
    place.confirm(bound, "n-0", 0)
    assert free_gpus(kept, "n-0") == 0
    assert names(place.run_pass(0).assigned) == ["c"]
    assert place.offered_node("c") == "n-1"


def test_taking_again_makes_it_last_from_then_on() -> None:
    place = standing(kept := ledger(*gpu_nodes(2)))
    it = request("a", 2)
    place.confirm(it, "n-0", 0)
    place.confirm(it, "n-0", ASSUMED_S / 2)
    place.run_pass(ASSUMED_S)
    assert free_gpus(kept, "n-0") == 0
    place.run_pass(ASSUMED_S * 1.5)
    assert free_gpus(kept, "n-0") == 2


def test_a_machine_that_comes_later_is_used() -> None:
    place = standing(kept := ledger(), request("a", 2))
    assert place.run_pass(0).assigned == []
    kept.node_changed(None, node("n", gpus=2, ready=False))
    assert place.run_pass(1).assigned == []
    kept.node_changed(node("n", gpus=2, ready=False), node("n", gpus=2))
    assert names(place.run_pass(2).assigned) == ["a"]


def test_what_a_gang_is_expected_to_take_is_not_given_away() -> None:
    place = standing(kept := ledger(*gpu_nodes(4, 2)), request("a", 2), request("b", 2, age_s=1))
    kept.set_gang_demand({"n-0": request("x", 3).shape.requests}, {"n-1"})
    assert place.run_pass(0).assigned == []
    kept.set_gang_demand({"n-0": request("x", 3).shape.requests})
    assert names(place.run_pass(1).assigned) == ["a"]
    assert place.offered_node("a") == "n-1"


class TestPatience:
    """A workload that needs a whole machine does not wait for ever behind small ones."""

    LARGE = request("large", 8, age_s=1000)

    def small(self, number: int, priority: int = 0) -> Request:
        return request(f"small-{number}", 4, age_s=900 - number, priority=priority)

    def halves(self) -> tuple[Ledger, Placement]:
        """Two machines, each half full."""
        kept = ledger(*gpu_nodes(8, 8), pod("p", "n-0", gpu="4"), pod("q", "n-1", gpu="5"))
        return kept, standing(kept, self.LARGE)

    def test_small_ones_pass_while_it_is_patient(self) -> None:
        _, place = self.halves()
        place.enqueue(self.small(0), PATIENCE_S - 1)
        assert names(place.run_pass(PATIENCE_S - 1).assigned) == ["small-0"]

    def test_then_the_machine_that_lacks_the_least_is_kept_for_it(self) -> None:
        kept, place = self.halves()
        for number in range(2):
            place.enqueue(self.small(number), PATIENCE_S)
        assert place.run_pass(PATIENCE_S).assigned == []
        kept.pod_changed(pod("q", "n-1", gpu="5"), None)
        # n-1 is roomier now and even fits it; so it gets that one.
        assert names(place.run_pass(PATIENCE_S).assigned) == ["large", "small-0"]
        assert (place.offered_node("large"), place.offered_node("small-0")) == ("n-1", "n-0")

    def test_the_others_go_on_elsewhere(self) -> None:
        kept, place = self.halves()
        place.enqueue(self.small(0), PATIENCE_S)
        assert place.run_pass(PATIENCE_S).assigned == []
        kept.pod_changed(pod("q", "n-1", gpu="5"), pod("q", "n-1", gpu="4"))
        # It stays with the machine that was kept first.
        assert names(place.run_pass(PATIENCE_S).assigned) == ["small-0"]
        assert place.offered_node("small-0") == "n-1"
        kept.pod_changed(pod("p", "n-0", gpu="4"), None)
        assert names(place.run_pass(PATIENCE_S).assigned) == ["large"]

    def test_nothing_is_kept_from_those_before_it(self) -> None:
        _, place = self.halves()
        place.enqueue(self.small(0, priority=1), PATIENCE_S)
        assert names(place.run_pass(PATIENCE_S).assigned) == ["small-0"]

    def test_nothing_is_kept_between_two_looks(self) -> None:
        kept, place = self.halves()
        place.run_pass(PATIENCE_S)
        assert (free_gpus(kept, "n-0"), dict(kept.reservations)) == (4, {})

    def test_nothing_is_reserved_for_a_workload_that_would_never_fit(self) -> None:
        _, place = self.halves()
        place.enqueue(request("huge", 9, priority=5), 0)
        place.leave("large")
        place.enqueue(self.small(0), PATIENCE_S)
        assert names(place.run_pass(PATIENCE_S).assigned) == ["small-0"]

    def test_a_machine_that_is_lost_is_no_longer_kept(self) -> None:
        kept, place = self.halves()
        place.run_pass(PATIENCE_S)
        first = gpu_nodes(8)[0]
        kept.node_changed(
            first, cordoned := structs.replace(first, spec=structs.replace(first.spec, unschedulable=True))
        )
        place.enqueue(request("tiny", 3, age_s=1), PATIENCE_S)
        assert place.run_pass(PATIENCE_S).assigned == []  # n-1 is kept now
        kept.node_changed(cordoned, first)
        assert place.run_pass(PATIENCE_S + 1).assigned == [request("tiny", 3, age_s=1)]
        assert place.offered_node("tiny") == "n-0"


def test_a_workload_before_its_first_pass_has_no_message() -> None:
    place = standing(ledger(*gpu_nodes(2)), it := request("a", 4))
    assert place.wait("a", 0) is None
    assert place.run_pass(0).newly_waiting == [it]
    assert place.wait("a", 0) is not None
    assert place.run_pass(1).newly_waiting == []
    place.enqueue(other := request("a", 5), 2)
    assert place.wait("a", 2) is None
    assert place.run_pass(2).newly_waiting == [other]


def test_a_workload_that_leaves_before_the_first_pass_is_not_reported() -> None:
    place = standing(ledger(*gpu_nodes(2)), request("a", 4), request("b", 1))
    place.leave("a")
    look = place.run_pass(0)
    assert (names(look.assigned), look.newly_waiting) == (["b"], [])


def test_a_look_is_due_after_everything_that_may_change_its_outcome_and_not_after_itself() -> None:
    place = standing(kept := ledger(*gpu_nodes(8), holder := pod("p", "n-0", gpu="1")), request("large", 8))
    changes: list[Callable[[], object]] = [
        lambda: kept.pod_changed(holder, None),
        lambda: kept.set_gang_demand({"n-0": request("x").shape.requests}),
        lambda: place.enqueue(request("other", 1), 0),
        lambda: place.leave("large"),
    ]
    for change in (lambda: None, *changes):
        change()
        assert place.is_due
        place.run_pass(PATIENCE_S)  # keeps a machine for a moment, too
        assert not place.is_due


def test_a_workload_that_is_queued_again_gives_back_the_capacity_of_its_last_attempt() -> None:
    place = standing(kept := ledger(*gpu_nodes(2, 1)))
    first = request("a", 2)
    place.confirm(first, "n-0", 0)
    second = structs.replace(first, reservation_id="a-1", avoided=("n-0",))
    place.enqueue(second, 1)
    assert free_gpus(kept, "n-0") == 2
    assert place.run_pass(1).assigned == [second]
    assert place.offered_node("a") == "n-0"  # no other will do
    place.confirm(second, "n-0", 1)
    assert set(kept.reservations) == {"a-1"}


def test_a_workload_that_has_its_pod_and_leaves_does_not_free_the_pods_capacity() -> None:
    place = standing(kept := ledger(*gpu_nodes(2)))
    it = request("a", 2)
    place.confirm(it, "n-0", 0)
    kept.pod_changed(None, pod_of(it, "n-0"))
    place.leave("a")
    assert free_gpus(kept, "n-0") == 0
    assert place._assignments == {}


def test_indexes_for_which_no_workload_waits_do_not_pile_up() -> None:
    place = standing(ledger(*gpu_nodes(2)), request("w", 4))
    for number in range(3 * MAX_IDLE_INDEXES):
        place.enqueue(request("passing", 1, nodeSelector={"zone": str(number)}), 0)
        place.run_pass(0)
    place.leave("passing")
    place.run_pass(0)
    assert len(place._indexes) == MAX_IDLE_INDEXES + 1


def test_a_line_of_many_sorts_is_looked_at_bit_by_bit_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index for each is made by going through all machines."""
    monkeypatch.setattr(placement_module, "NODES_PER_PASS", 4)
    place = placement(ledger(*gpu_nodes(8, 8)))
    line = [request(f"w-{number}", priority=-number, nodeSelector={"only": str(number)}) for number in range(5)]
    last = request("last", gpus=8, priority=-9)
    for each in (*line, last):
        place.enqueue(each, 0)
    for _ in range(2):
        assert (place.run_pass(0), place.is_due) == (PassResult([], []), True)
        assert place.wait("w-0", 0) is None
    found = place.run_pass(0)
    assert ([each.uid for each in found.assigned], place.is_due) == (["last"], False)
    assert [each.uid for each in found.newly_waiting] == [each.uid for each in line]
    assert place.wait("w-0", 0) is not None


def test_whatever_else_they_ask_for_they_share_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "NODES_PER_PASS", 2)
    place = placement(ledger(*gpu_nodes(8, 8)))
    for number in range(1, 9):
        place.enqueue(request(f"w-{number}", gpus=number, asks={"cpu": str(number)}), 0)
    assert len(place.run_pass(0).assigned) > 1
    assert not place.is_due
