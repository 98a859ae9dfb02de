"""Who was heard when, and when there was progress last."""

import pytest

from holdfast.api.reports import WorkerReport
from holdfast.trainingjob.decide.liveness import AttemptReports, WorkerReports, gpu_utilization_percent, record_report
from tests.trainingjob.reports.reports import batch, checkpoint, ended, step


def heard(*reports: tuple[float, WorkerReport]) -> AttemptReports:
    found: AttemptReports | None = None
    for now_s, report in reports:
        found = record_report(found, report, now_s)
    assert found is not None
    return found


def test_the_first_word_is_where_waiting_for_progress_begins() -> None:
    assert heard((10, batch())) == AttemptReports(attempt=0, first_s=10, progress_s=10, workers={0: WorkerReports(10)})


def test_a_sign_of_life_is_no_progress() -> None:
    found = heard((10, batch(ended(1))), (20, batch()), (30, batch(index=1)))
    assert (found.first_s, found.progress_s) == (10, 10)
    assert {index: voice.received_s for index, voice in found.workers.items()} == {0: 20, 1: 30}


def test_a_checkpoint_alone_is_no_progress() -> None:
    assert heard((10, batch()), (20, batch(checkpoints=(checkpoint(1),)))).progress_s == 10


@pytest.mark.parametrize(
    "report",
    [batch(ended(2)), batch(step(2, 6)), batch(step(2, 5), ended(2)), batch(step(1, 5)), batch(ended(0))],
    ids=["end", "step", "both", "back again", "anew"],
)
def test_any_other_point_than_before_is_progress(report: WorkerReport) -> None:
    """Also one further back: a training that was suspended goes on from its checkpoint."""
    assert heard((10, batch(step(2, 5))), (20, report)).progress_s == 20


def test_what_is_told_once_more_is_no_progress() -> None:
    assert heard((10, batch(ended(1), ended(2))), (20, batch(ended(1), ended(2)))).progress_s == 10


def test_the_end_of_an_epoch_and_the_start_of_the_next_are_one_point() -> None:
    assert heard((10, batch(ended(2))), (20, batch(step(3, 0)))).progress_s == 10


def test_each_worker_has_its_own_point() -> None:
    found = heard((10, batch(ended(1))), (11, batch(ended(1), index=1)), (20, batch(ended(1))))
    assert found.progress_s == 11


def test_a_new_attempt_is_heard_anew() -> None:
    found = heard((10, batch(ended(5), index=1)), (50, batch(attempt=1)))
    assert found == AttemptReports(attempt=1, first_s=50, progress_s=50, workers={0: WorkerReports(50)})


def gpus(percent: float | None, index: int = 0, attempt: int = 0) -> WorkerReport:
    return batch(index=index, attempt=attempt, gpu_utilization_percent=percent)


@pytest.mark.parametrize(
    ("reports", "mean"),
    [
        ([], None),
        ([(10, gpus(None))], None),
        ([(10, gpus(0.0))], 0.0),
        ([(10, gpus(30.0)), (11, gpus(80.0, 1))], 55.0),
        ([(10, gpus(30.0)), (11, gpus(None, 1))], 30.0),
        ([(10, gpus(100.0)), (11, gpus(1.0, 1)), (12, gpus(1.0, 2))], 34.0),
        ([(10, gpus(10.0)), (11, gpus(10.0, 1)), (12, gpus(20.0, 2))], 13.3),
        ([(10, gpus(30.0)), (12, gpus(90.0))], 90.0),
        ([(10, gpus(30.0)), (12, gpus(None))], None),
        ([(4, gpus(30.0)), (10, gpus(80.0, 1))], 80.0),
        ([(5, gpus(30.0)), (10, gpus(80.0, 1))], 80.0),
        ([(4, gpus(30.0))], None),
        ([(10, gpus(30.0, 1)), (11, gpus(80.0, 0, 1))], 80.0),
        ([(10, gpus(30.0, 1)), (11, gpus(None, 0, 1))], None),
    ],
    ids=[
        "nobody",
        "unknown",
        "idle",
        "two",
        "one of two",
        "three",
        "rounded",
        "the newest",
        "no longer known",
        "silent",
        "just silent",
        "all silent",
        "another attempt",
        "another attempt, unknown",
    ],
)
def test_the_gpu_utilization_is_the_mean_over_the_workers_that_report_it(
    reports: list[tuple[float, WorkerReport]], mean: float | None
) -> None:
    found = heard(*reports) if reports else None
    assert gpu_utilization_percent(found, now_s=20, silent_s=15) == mean
