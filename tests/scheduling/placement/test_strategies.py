"""Each strategy's rule, on its own."""

import sys
import typing
from pathlib import Path

import pytest

from holdfast.api.core.objects import Node, Pod
from holdfast.api.gpuworkload import GPUWorkloadSpec, Strategy
from holdfast.scheduling import strategies
from holdfast.scheduling.free_gpus import MAX_GPUS
from holdfast.scheduling.ledger import GPU, Ledger
from holdfast.scheduling.strategies import STRATEGIES
from holdfast.scheduling.strategies.cost_optimized import CHEAP_LABEL
from tests.scheduling.nodes import ledger, node, pod
from tests.scheduling.placement.requests import gpu_nodes, placed, placement, request

CHEAP = {CHEAP_LABEL: "true"}


def choice(strategy: str, *things: Node | Pod, gpus: int = 2, avoided: tuple[str, ...] = (), seed: int = 0) -> str:
    """The machine that it gets, "" if none."""
    return placed([request("w", gpus, strategy, avoided=avoided)], ledger(*things), seed=seed).get("w", "")


def test_the_strategies_are_those_of_the_api() -> None:
    assert set(STRATEGIES) == set(typing.get_args(Strategy))


def test_no_workload_may_request_more_gpus_than_the_index_distinguishes() -> None:
    (bound,) = typing.get_type_hints(GPUWorkloadSpec, include_extras=True)["gpu_count"].__metadata__
    assert bound.le == MAX_GPUS


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("things", "expected"),
    [
        ([], ""),
        (gpu_nodes(1, 1), ""),
        (gpu_nodes(1, 2, 1), "n-1"),
        ([*gpu_nodes(2, 2), pod(on="n-0", gpu="1")], "n-1"),
        ([node("a", gpus=8, ready=False), node("b", gpus=2)], "b"),
        ([node("a", gpus=8, unschedulable=True), node("b", gpus=2)], "b"),
        ([node("a", gpus=8, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]), node("b", gpus=2)], "b"),
        ([node("a", gpus=8, taints=[{"key": GPU, "effect": "NoSchedule"}])], "a"),
        ([node("a", gpus=8, taints=[{"key": "team", "effect": "PreferNoSchedule"}])], "a"),
        ([node("a", gpus="-8"), node("b", gpus="many"), node("c", gpus="1500m"), node("d", gpus="2")], "d"),
        ([node("a", gpus=8, capacity={GPU: "1"}), node("b", gpus=2)], "b"),
        ([node("a", gpus=10**12)], "a"),
        ([node("a", gpus=10**30), node("b", gpus=2)], "b"),  # the scheduler finds no room there
    ],
)
def test_only_a_machine_that_is_open_and_has_enough_is_taken(
    strategy: str, things: list[Node | Pod], expected: str
) -> None:
    assert choice(strategy, *things) == expected


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        (gpu_nodes(2, 8, 4), "n-1"),
        (gpu_nodes(4, 8, 8), "n-1"),
        ([*gpu_nodes(8, 6), pod(on="n-0", gpu="4")], "n-1"),
        ([node("b", gpus=100), node("a", gpus=99)], "b"),
        ([node("b", gpus=8), node("a", gpus=8)], "a"),
        ([node("a", gpus=4, labels=CHEAP), node("b", gpus=8)], "b"),
    ],
)
def test_least_loaded_takes_the_most_free_and_the_first_by_name_among_equals(
    things: list[Node | Pod], expected: str
) -> None:
    assert choice("leastLoaded", *things) == expected


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        ([node("a", gpus=8), node("b", gpus=2, labels=CHEAP)], "b"),
        ([node("a", gpus=8), node("b", gpus=1, labels=CHEAP)], "a"),
        ([node("a", gpus=2, labels=CHEAP), node("b", gpus=4, labels=CHEAP)], "b"),
        ([node("b", gpus=4, labels=CHEAP), node("a", gpus=4, labels=CHEAP)], "a"),
        ([node("a", gpus=8), node("b", gpus=4, labels={CHEAP_LABEL: "yes"})], "a"),
        ([node("a", gpus=8), node("b", gpus=4, labels=CHEAP, unschedulable=True)], "a"),
    ],
)
def test_cost_optimized_takes_a_cheap_machine_first_and_else_the_least_loaded(
    things: list[Node | Pod], expected: str
) -> None:
    assert choice("costOptimized", *things) == expected


def test_a_machine_that_becomes_cheap_or_stops_being_so_is_treated_so_from_then_on() -> None:
    kept = ledger(node("a", gpus=8), before := node("b", gpus=2))
    assert placed([request("v", 2, "costOptimized")], kept) == {"v": "a"}
    kept.node_changed(before, cheap := node("b", gpus=2, labels=CHEAP))
    assert placed([request("w", 1, "costOptimized")], kept) == {"w": "b"}
    kept.node_changed(cheap, before)
    assert placed([request("x", 1, "costOptimized")], kept) == {"x": "a"}


@pytest.mark.parametrize("seed", range(5))
def test_the_same_dice_make_the_same_random_choice(seed: int) -> None:
    nodes = gpu_nodes(*[4] * 50)
    assert choice("random", *nodes, seed=seed) == choice("random", *nodes, seed=seed)


# By degrees of freedom: what a uniform choice exceeds once in a thousand times.
CHI_SQUARE = {17: 40.79, 18: 42.31, 19: 43.82}


@pytest.mark.parametrize(
    ("avoided", "fitting"), [((), 20), (("n-7",), 19), (("n-7", "n-11", "no-such"), 18), (("n-21",), 20)]
)
def test_random_is_uniform_over_the_machines_that_fit(avoided: tuple[str, ...], fitting: int) -> None:
    """n-20 and later are too full; the others differ in what they have free, which must not matter."""
    draws = 4000
    counts: dict[str, int] = {}
    full = [pod(f"p-{number}", f"n-{number}", gpu="7") for number in range(20, 30)]
    kept = ledger(*gpu_nodes(*[2 + number % 7 for number in range(20)], *[8] * 10), *full)
    place = placement(kept, seed=7)
    asked = request("w", 2, "random", avoided=avoided)
    for _ in range(draws):
        place.enqueue(asked, 0)
        place.run_pass(0)
        found = place.offered_node("w") or ""
        counts[found] = counts.get(found, 0) + 1
        place.leave("w")
    expected = draws / fitting
    assert len(counts) == fitting
    assert not counts.keys() & set(avoided)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert statistic < CHI_SQUARE[fitting - 1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_machine_that_just_failed_it_is_taken_only_if_no_other_will_do(strategy: str) -> None:
    assert choice(strategy, *gpu_nodes(8, 2), avoided=("n-0",)) == "n-1"
    assert choice(strategy, *gpu_nodes(8, 1), avoided=("n-0",)) == "n-0"
    assert choice(strategy, *gpu_nodes(1, 1), avoided=("n-0",)) == ""


def test_a_cheap_machine_that_failed_it_gives_way_to_a_dear_one() -> None:
    nodes = [node("a", gpus=8, labels=CHEAP), node("b", gpus=2)]
    assert choice("costOptimized", *nodes, avoided=("a",)) == "b"


def test_what_else_the_pod_asks_for_counts_as_well() -> None:
    kept = ledger(node("a", gpus=8, room={"cpu": "2"}), node("b", gpus=4), node("c", gpus=6, room={"pods": "0"}))
    assert placed([request("w", 2, asks={"cpu": "4"})], kept) == {"w": "b"}


def test_a_selector_is_kept_to() -> None:
    kept: Ledger = ledger(node("a", gpus=8), node("b", gpus=4, labels={"zone": "x"}))
    assert placed([request("w", 2, nodeSelector={"zone": "x"})], kept) == {"w": "b"}


NEVER = """
from holdfast.scheduling.strategy import Strategy

STRATEGY = Strategy(name="never", pick=lambda shelf, gpus, avoided, dice: None)
"""


def test_one_file_adds_a_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never.py").write_text(NEVER)
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path)])
    try:
        assert set(strategies.load_strategies()) == {*STRATEGIES, "never"}
    finally:
        del sys.modules[f"{strategies.__name__}.never"]
        del strategies.never  # type: ignore[attr-defined]  # bound by the import, of a file that is gone
