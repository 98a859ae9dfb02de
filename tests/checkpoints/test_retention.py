"""Which checkpoints go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.names import Name, named
from holdfast.checkpoints.retention import Kept, doomed


def valid(epoch: int, attempt: int = 0) -> Kept:
    return Kept(named(epoch, attempt), valid=True)


def unsealed(epoch: int, attempt: int = 0) -> Kept:
    return Kept(named(epoch, attempt), valid=False)


@pytest.mark.parametrize(
    ("there", "keep", "attempt", "going"),
    [
        pytest.param([], 3, 0, [], id="nothing is there"),
        pytest.param([valid(1), valid(2)], 3, 0, [], id="fewer than may stay"),
        pytest.param([valid(1), valid(2), valid(3), valid(4)], 2, 0, [named(1, 0), named(2, 0)], id="oldest first"),
        pytest.param([valid(1)], 0, 0, [], id="the last valid one never"),
        pytest.param([valid(1), valid(2, 1)], 1, 0, [], id="nothing of a newer attempt, and it counts for nothing"),
        pytest.param([valid(1), valid(2), unsealed(3)], 2, 0, [], id="what is being written does not count"),
        pytest.param([unsealed(1), valid(2), valid(3)], 1, 0, [named(2, 0)], id="nor does it go"),
        pytest.param([unsealed(1), valid(2, 1)], 1, 1, [named(1, 0)], id="what an attempt that is over left, goes"),
        pytest.param([unsealed(9), valid(2, 1)], 1, 1, [], id="unless it is newer, and might be whole"),
        pytest.param([unsealed(1), valid(2, 1)], 2, 1, [], id="or fewer than may stay are valid"),
        pytest.param([valid(5), valid(5, 1), valid(6, 1)], 2, 1, [], id="the copy and its original are one epoch"),
        pytest.param(
            [valid(5), valid(5, 1), valid(5, 2), valid(5, 3)], 2, 3, [named(5, 0), named(5, 1)], id="further copies go"
        ),
        pytest.param([valid(7), valid(1, 1), valid(8)], 2, 1, [named(1, 1)], id="age is the epoch, not the attempt"),
    ],
)
def test_what_goes(there: list[Kept], keep: int, attempt: int, going: list[Name]) -> None:
    assert doomed(there, keep, attempt) == going


def test_what_a_worker_may_be_reading_stays() -> None:
    there = [valid(1), valid(2), valid(3)]
    assert doomed(there, 1, 0, needed=[named(1, 0)]) == [named(2, 0)]


KEPT = st.builds(Kept, st.builds(named, st.integers(0, 6), st.integers(0, 3)), st.booleans())


@given(st.lists(KEPT, unique_by=lambda kept: kept.name), st.integers(0, 4), st.integers(0, 3))
def test_no_resume_misses_anything(there: list[Kept], keep: int, attempt: int) -> None:
    going = set(doomed(there, keep, attempt))
    mine = [kept for kept in there if kept.name.attempt <= attempt]
    epochs = sorted({kept.name.epoch for kept in mine if kept.valid}, reverse=True)
    staying = {kept.name.epoch for kept in mine if kept.valid and kept.name not in going}
    assert set(epochs[: max(keep, 1)]) <= staying, "an epoch that should stay is gone"
    for kept in there:
        if kept.name in going:
            assert kept.name.attempt <= attempt
            assert kept.valid or kept.name.attempt < attempt
            assert any(other.valid and other.name.epoch >= kept.name.epoch for other in mine if other != kept)


@given(st.lists(KEPT, unique_by=lambda kept: kept.name), st.integers(1, 4), st.integers(0, 3))
def test_once_is_enough(there: list[Kept], keep: int, attempt: int) -> None:
    going = doomed(there, keep, attempt)
    assert doomed([kept for kept in there if kept.name not in going], keep, attempt) == []
