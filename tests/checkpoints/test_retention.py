"""Which checkpoints go."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.manifest import CheckpointName, checkpoint_name
from holdfast.checkpoints.retention import Metric, StoredCheckpoint, best, expired


def valid(epoch: int, attempt: int = 0) -> StoredCheckpoint:
    return StoredCheckpoint(checkpoint_name(epoch, attempt), valid=True)


def unsealed(epoch: int, attempt: int = 0) -> StoredCheckpoint:
    return StoredCheckpoint(checkpoint_name(epoch, attempt), valid=False)


@pytest.mark.parametrize(
    ("there", "keep", "attempt", "going"),
    [
        pytest.param([], 3, 0, [], id="nothing is there"),
        pytest.param([valid(1), valid(2)], 3, 0, [], id="fewer than may stay"),
        pytest.param(
            [valid(1), valid(2), valid(3), valid(4)],
            2,
            0,
            [checkpoint_name(1, 0), checkpoint_name(2, 0)],
            id="oldest first",
        ),
        pytest.param([valid(1)], 0, 0, [], id="the last valid one never"),
        pytest.param([valid(1), valid(2, 1)], 1, 0, [], id="nothing of a newer attempt, and it counts for nothing"),
        pytest.param([valid(1), valid(2), unsealed(3)], 2, 0, [], id="what is being written does not count"),
        pytest.param([unsealed(1), valid(2), valid(3)], 1, 0, [checkpoint_name(2, 0)], id="nor does it go"),
        pytest.param(
            [unsealed(1), valid(2, 1)], 1, 1, [checkpoint_name(1, 0)], id="what an attempt that is over left, goes"
        ),
        pytest.param([unsealed(9), valid(2, 1)], 1, 1, [], id="unless it is newer, and might be whole"),
        pytest.param([unsealed(1), valid(2, 1)], 2, 1, [], id="or fewer than may stay are valid"),
        pytest.param([valid(5), valid(5, 1), valid(6, 1)], 2, 1, [], id="the copy and its original are one epoch"),
        pytest.param(
            [valid(5), valid(5, 1), valid(5, 2), valid(5, 3)],
            2,
            3,
            [checkpoint_name(5, 0), checkpoint_name(5, 1)],
            id="further copies go",
        ),
        pytest.param(
            [valid(7), valid(1, 1), valid(8)], 2, 1, [checkpoint_name(1, 1)], id="age is the epoch, not the attempt"
        ),
    ],
)
def test_all_but_the_newest_expire(
    there: list[StoredCheckpoint], keep: int, attempt: int, going: list[CheckpointName]
) -> None:
    assert expired(there, keep, attempt) == going


def test_what_a_worker_may_be_reading_stays() -> None:
    there = [valid(1), valid(2), valid(3)]
    assert expired(there, 1, 0, needed=[checkpoint_name(1, 0)]) == [checkpoint_name(2, 0)]


def scored(epoch: int, loss: float, attempt: int = 0, *, valid: bool = True, fenced: bool = False) -> StoredCheckpoint:
    return StoredCheckpoint(checkpoint_name(epoch, attempt), valid, fenced, {"loss": loss, "accuracy": loss})


@pytest.mark.parametrize(
    ("there", "lowest_loss", "highest_accuracy"),
    [
        pytest.param([], None, None, id="nothing is there"),
        pytest.param([scored(1, 0.5), scored(2, 0.2), scored(3, 0.9)], 2, 3, id="by loss or by accuracy"),
        pytest.param([scored(2, 0.5), scored(1, 0.5), scored(3, 0.5)], 3, 3, id="of equal ones the newer"),
        pytest.param([scored(1, 0.5), valid(2), unsealed(3)], 1, 1, id="without metrics none is the best"),
        pytest.param([valid(1), valid(2)], None, None, id="not even if none has any"),
        pytest.param([scored(1, 0.5), scored(2, math.nan)], 1, 1, id="NaN is never the best"),
        pytest.param([scored(1, 0.5), scored(2, math.inf), scored(3, -math.inf)], 1, 1, id="nor is what overflowed"),
        pytest.param([scored(1, math.nan)], None, None, id="NaN is not the best, even alone"),
        pytest.param(
            [scored(1, 0.5), scored(2, 0.1, fenced=True), scored(3, 0.9, fenced=True)], 1, 1, id="nor a fenced one"
        ),
        pytest.param(
            [scored(1, 0.5), scored(2, 0.1, valid=False), scored(3, 0.9, valid=False)], 1, 1, id="nor an invalid one"
        ),
        pytest.param(
            [StoredCheckpoint(checkpoint_name(1, 0), valid=True, metrics={"trainLoss": 0.1})],
            None,
            None,
            id="other metrics",
        ),
    ],
)
def test_the_best_has_the_lowest_loss_or_the_highest_accuracy(
    there: list[StoredCheckpoint], lowest_loss: int | None, highest_accuracy: int | None
) -> None:
    found = best(there, "loss"), best(there, "accuracy")
    assert [one and one.name.epoch for one in found] == [lowest_loss, highest_accuracy]


def test_the_best_stays_beside_the_newest_until_another_is_better() -> None:
    there = [scored(1, 0.9), scored(2, 0.1), scored(3, 0.5), scored(4, 0.4)]
    assert expired(there, 1, 0) == [checkpoint_name(1, 0), checkpoint_name(3, 0)]
    assert expired(there, 1, 0, by="accuracy") == [checkpoint_name(2, 0), checkpoint_name(3, 0)]
    assert expired([*there, scored(5, 0.05)], 1, 0) == [checkpoint_name(epoch, 0) for epoch in (1, 2, 3, 4)]


def test_of_the_best_one_copy_stays() -> None:
    there = [scored(2, 0.1), scored(2, 0.1, attempt=1), scored(3, 0.5, attempt=1)]
    assert expired(there, 1, 1) == [checkpoint_name(2, 0)]


METRICS = st.dictionaries(st.sampled_from(["loss", "accuracy"]), st.floats())
KEPT = st.builds(
    StoredCheckpoint,
    st.builds(checkpoint_name, st.integers(0, 6), st.integers(0, 3)),
    st.booleans(),
    st.booleans(),
    metrics=METRICS,
)
BY: st.SearchStrategy[Metric] = st.sampled_from(["loss", "accuracy"])


@given(st.lists(KEPT, unique_by=lambda kept: kept.name), st.integers(1, 4), st.integers(0, 3), BY)
def test_the_best_is_never_deleted_and_no_other_is_kept_for_it(
    there: list[StoredCheckpoint], keep: int, attempt: int, by: Metric
) -> None:
    mine = [kept for kept in there if kept.name.attempt <= attempt]
    top, going = best(mine, by), set(expired(there, keep, attempt, by=by))
    plain = set(expired([kept._replace(metrics={}) for kept in there], keep, attempt, by=by))
    assert going == plain - ({top.name} if top is not None else set())
    if top is not None:
        assert top.valid
        assert not top.fenced
        assert math.isfinite(top.metrics[by])
    staying = {kept.name.epoch for kept in mine if kept.is_resumable and kept.name not in going}
    assert len(staying) <= keep + 1


@given(st.lists(KEPT, unique_by=lambda kept: kept.name), st.integers(0, 4), st.integers(0, 3))
def test_no_resume_misses_anything(there: list[StoredCheckpoint], keep: int, attempt: int) -> None:
    going = set(expired(there, keep, attempt))
    mine = [kept for kept in there if kept.name.attempt <= attempt]
    epochs = sorted({kept.name.epoch for kept in mine if kept.is_resumable}, reverse=True)
    staying = {kept.name.epoch for kept in mine if kept.is_resumable and kept.name not in going}
    assert set(epochs[: max(keep, 1)]) <= staying, "an epoch that should stay is gone"
    for kept in there:
        if kept.name in going:
            assert kept.name.attempt <= attempt
            assert kept.valid or kept.name.attempt < attempt
            assert any(other.valid and other.name.epoch >= kept.name.epoch for other in mine if other != kept)


@given(st.lists(KEPT, unique_by=lambda kept: kept.name), st.integers(1, 4), st.integers(0, 3))
def test_what_is_left_after_one_expiry_does_not_expire(there: list[StoredCheckpoint], keep: int, attempt: int) -> None:
    going = expired(there, keep, attempt)
    assert expired([kept for kept in there if kept.name not in going], keep, attempt) == []
