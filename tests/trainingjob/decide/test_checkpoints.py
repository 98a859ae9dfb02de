"""Which checkpoint is the newest that a resume can use."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.reports import CheckpointReport, WorkerReport
from holdfast.api.trainingjob import TrainingJobSpec
from holdfast.api.trainingjob_status import CheckpointStatus
from holdfast.trainingjob.decide.checkpoints import CheckpointWarning, apply_checkpoints, checkpoint_warnings
from tests.trainingjob.reports.reports import batch, checkpoint, resumed
from tests.trainingjobs import at, stamp, training_job

ON_DISK = training_job({"checkpoint": {}}).spec
IN_BUCKET = training_job({"checkpoint": {"storage": {"type": "s3", "s3Bucket": "models"}}}).spec


def told(
    *entries: CheckpointReport, spec: TrainingJobSpec = ON_DISK, report: CheckpointStatus | None = None, **more: Any
) -> CheckpointStatus | None:
    return apply_checkpoints(spec, report, batch(checkpoints=entries, **more), at(100))


def path(epoch: int) -> str:
    return f"attempt-0/checkpoint-epoch-{epoch}"


def test_nothing_is_shown_until_something_is_told() -> None:
    assert told() is None
    assert told(report=CheckpointStatus(count=2)) == CheckpointStatus(count=2)


def test_the_newest_complete_one_is_shown_with_its_own_time() -> None:
    expected = CheckpointStatus(last=path(2), last_epoch=2, last_time=stamp(90), count=2)
    assert told(checkpoint(1, valid_count=1), checkpoint(2, valid_count=2), age_s=10.0) == expected


@pytest.mark.parametrize(
    ("spec", "outcome", "counts"),
    [
        (ON_DISK, "completed", True),
        (ON_DISK, "uploaded", False),
        (ON_DISK, "failed", False),
        (ON_DISK, "quarantined", False),
        (IN_BUCKET, "completed", False),
        (IN_BUCKET, "uploaded", True),
    ],
)
def test_one_counts_from_when_the_next_attempt_would_find_it(spec: TrainingJobSpec, outcome: Any, counts: bool) -> None:
    report = told(checkpoint(1, outcome), spec=spec)
    assert report is not None
    assert report.last == (path(1) if counts else None)


def test_one_that_is_told_of_late_does_not_hide_a_newer_one() -> None:
    report = told(checkpoint(5), checkpoint(4))
    assert report is not None
    assert (report.last, report.last_epoch) == (path(5), 5)


def test_one_that_is_told_of_twice_keeps_its_time() -> None:
    once = told(checkpoint(5))
    assert told(checkpoint(5), report=once, age_s=60.0) == once


def test_a_corrupt_one_is_no_longer_shown_and_the_one_that_was_used_is() -> None:
    before = told(checkpoint(5, valid_count=2))
    after = told(checkpoint(5, "quarantined", valid_count=1), report=before, resumed=resumed(4))
    assert after is not None
    assert (after.last, after.last_epoch, after.count) == ("attempt-1/checkpoint-epoch-4", 4, 1)
    assert after.resumed_from == "attempt-1/checkpoint-epoch-4"


def test_a_corrupt_one_that_is_not_the_newest_changes_only_the_count() -> None:
    before = told(checkpoint(4), checkpoint(5, valid_count=2))
    after = told(checkpoint(4, "quarantined", valid_count=1), report=before)
    assert after is not None
    assert (after.last, after.count) == (path(5), 1)


def test_a_resume_is_shown_beside_the_newest() -> None:
    before = told(checkpoint(5))
    after = told(report=before, resumed=resumed(5))
    assert after is not None
    assert (after.last, after.resumed_from) == (path(5), "attempt-1/checkpoint-epoch-5")


def test_people_hear_of_what_went_wrong_from_any_worker() -> None:
    told_of: WorkerReport = batch(
        index=3,
        checkpoints=(
            checkpoint(1),
            checkpoint(2, "failed", reason="no space left\non device"),
            checkpoint(3, "quarantined", reason="model.pt has another digest"),
            checkpoint(4, "failed"),
        ),
    )
    assert list(checkpoint_warnings(told_of)) == [
        CheckpointWarning(
            "CheckpointFailed",
            f"worker 3 could not keep checkpoint {path(2)}, the training goes on: no space left on device",
        ),
        CheckpointWarning(
            "CheckpointQuarantined",
            f"checkpoint {path(3)} is corrupt and was put aside, the one before it is used: "
            "model.pt has another digest",
        ),
        CheckpointWarning(
            "CheckpointFailed",
            f"worker 3 could not keep checkpoint {path(4)}, the training goes on: no reason was given",
        ),
    ]


@given(st.permutations(range(1, 7)), st.integers(0, 6))
def test_whatever_the_order_the_newest_is_shown(epochs: list[int], cut: int) -> None:
    first = told(*(checkpoint(epoch) for epoch in epochs[:cut]))
    both = told(*(checkpoint(epoch) for epoch in epochs[cut:]), report=first)
    assert both is not None
    assert both.last_epoch == 6


def test_a_worker_that_can_not_have_its_checkpoint_yet_is_told_of_as_waiting() -> None:
    (trouble,) = checkpoint_warnings(batch(checkpoints=(checkpoint(0, "unrestored", reason="no answer"),), index=1))
    assert trouble.reason == "CheckpointNotRestored"
    assert trouble.message.startswith("worker 1 can't start yet")
    assert trouble.message.endswith("no answer")


def test_one_within_an_epoch_counts_for_the_epochs_before_it_until_it_is_replaced_by_the_end() -> None:
    within = structs.replace(checkpoint(3), epoch=2, step=7)
    report = told(checkpoint(2), within)
    assert report is not None
    assert (report.last, report.last_epoch) == (path(3), 2)
    again = told(within, report=structs.replace(report, last_time=stamp(1)))
    assert again is not None
    assert again.last_time == stamp(100)
    ended = told(checkpoint(3), report=report)
    assert ended is not None
    assert (ended.last, ended.last_epoch) == (path(3), 3)
    assert told(checkpoint(3), report=structs.replace(ended, last_time=stamp(1))) == structs.replace(
        ended, last_time=stamp(1)
    )


def test_the_best_is_shown_until_another_is_or_it_is_put_aside() -> None:
    report = told(checkpoint(3, valid_count=2, best=path(1)))
    assert report is not None
    assert (report.last, report.best, report.count) == (path(3), path(1), 2)
    assert told(checkpoint(4, "failed"), report=report) == report, "who can't tell changes nothing"
    better = told(checkpoint(4, valid_count=1, best=path(4)), report=report)
    assert better is not None
    assert better.best == path(4)
    aside = told(checkpoint(1, "quarantined"), report=report)
    assert aside == structs.replace(report, best=None)
    none = told(checkpoint(4, valid_count=1), report=report)
    assert none is not None
    assert none.best is None
