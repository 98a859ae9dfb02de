"""The index against a naive list."""

from collections.abc import Collection
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from holdfast.scheduling.free_gpus import MAX_GPUS, RANDOM_SAMPLES, SLACK, FreeGpuIndex, NodeFilter

NAMES = st.sampled_from("abcdef")
# A number of free GPUs, or None for a machine that goes.
STEPS = st.lists(st.tuples(NAMES, st.one_of(st.none(), st.integers(-2, 9), st.sampled_from([63, 64, 65, 10**9]))))
AVOIDED = st.sets(NAMES, max_size=3)


def index_of(free: dict[str, int]) -> FreeGpuIndex:
    made = FreeGpuIndex()
    for name, count in free.items():
        made.put(name, count)
    return made


def but(avoided: Collection[str] = ()) -> NodeFilter:
    return lambda name: name not in avoided


def naive(steps: list[tuple[str, int | None]]) -> dict[str, int]:
    free: dict[str, int] = {}
    for name, count in steps:
        if count is None:
            free.pop(name, None)
        else:
            free[name] = max(0, count)
    return free


def taken(steps: list[tuple[str, int | None]]) -> FreeGpuIndex:
    made = FreeGpuIndex()
    for name, count in steps:
        if count is None:
            made.remove(name)
        else:
            made.put(name, count)
        made.most()  # what is tidied up on the way must not matter
    return made


@settings(deadline=None)
@given(STEPS, st.integers(1, MAX_GPUS), AVOIDED)
def test_after_any_changes_it_answers_as_a_list_would(
    steps: list[tuple[str, int | None]], gpus: int, avoided: set[str]
) -> None:
    made, free = taken(steps), naive(steps)
    fitting = {name: count for name, count in free.items() if count >= gpus}
    open_ = sorted((-count, name) for name, count in fitting.items() if name not in avoided)
    assert (len(made), made.most(), made.count_with(gpus)) == (len(free), max(free.values(), default=0), len(fitting))
    assert {name: made.free(name) for name in free} == free
    for _ in range(2):  # asking changes nothing
        assert made.most_free_node(gpus, but(avoided)) == (open_[0][1] if open_ else None)


class Stubborn(Struct):
    """Dice that show the first of all, until somebody looks for the last resort; then the n-th."""

    shows: int
    rolls: int = 0

    def randrange(self, stop: int, /) -> int:
        self.rolls += 1
        return self.shows if self.rolls > RANDOM_SAMPLES else 0


@settings(deadline=None)
@given(STEPS, st.integers(1, MAX_GPUS), AVOIDED)
def test_any_of_them_is_one_that_fits_and_each_can_be_it(
    steps: list[tuple[str, int | None]], gpus: int, avoided: set[str]
) -> None:
    made = taken(steps)
    allowed = {name for name, count in naive(steps).items() if count >= gpus and name not in avoided}
    found = {made.random_node(gpus, but(avoided), Random(seed)) or "none" for seed in range(200)}
    assert found == (allowed or {"none"})


def test_where_hardly_any_will_do_all_are_gone_through() -> None:
    made = index_of({f"n-{number}": 8 for number in range(1000)})
    rare = {"n-500", "n-7"}
    assert {made.random_node(8, rare.__contains__, Stubborn(shows)) for shows in (0, 1)} == rare
    assert made.random_node(8, lambda _: False, Random(0)) is None


def test_nodes_with_more_than_any_request_are_still_ordered_by_free_gpus() -> None:
    made = index_of({"a": MAX_GPUS, "b": MAX_GPUS + 2, "c": MAX_GPUS + 1})
    assert (made.most_free_node(MAX_GPUS, but()), made.most(), made.count_with(MAX_GPUS)) == ("b", MAX_GPUS + 2, 3)


@pytest.mark.parametrize("changes", [10_000])
def test_what_is_outdated_does_not_pile_up(changes: int) -> None:
    made = index_of({"a": 8})
    for number in range(changes):
        made.put("b", number % 8)
    assert len(made._heap) <= 2 * len(made) + SLACK + 1


def test_a_machine_that_comes_back_with_what_it_had_is_found_once() -> None:
    made = index_of({"a": 4, "b": 4})
    for count in (2, 4, 2, 4):
        made.put("a", count)
    made.remove("a")
    assert made.most_free_node(1, but()) == "b"
    made.put("a", 4)
    assert made.most_free_node(1, but({"b"})) == "a"
    assert made.most_free_node(1, but({"a", "b"})) is None
    assert made.most_free_node(1, but()) == "a"
