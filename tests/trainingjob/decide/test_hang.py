"""A training hangs when its workers are heard and tell of no progress."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.trainingjob import TrainingJob
from holdfast.trainingjob.decide.liveness import AttemptReports, WorkerReports, find_hang, hang_due_s
from tests.trainingjobs import training_job

LIMIT_S = 600


def job(**status: Any) -> TrainingJob:
    return training_job({"progressDeadlineSeconds": LIMIT_S}, status={"state": "Running", **status})


def heard(*last_s: float, progress_s: float = 0.0, attempt: int = 0) -> AttemptReports:
    """Each worker's last word."""
    voices = {index: WorkerReports(at_s) for index, at_s in enumerate(last_s)}
    return AttemptReports(attempt=attempt, first_s=0.0, progress_s=progress_s, workers=voices)


def hangs(
    heard: AttemptReports | None,
    *,
    job: TrainingJob = job(),  # noqa: B008  # frozen
    running: tuple[int, ...] = (0, 1),
    running_since_s: float = 0.0,
    hearing_since_s: float = 0.0,
) -> bool:
    loss = find_hang(job, heard, running, running_since_s=running_since_s, receiving_since_s=hearing_since_s)
    assert loss is None or loss.cause == "hang"
    return loss is not None


@pytest.mark.parametrize(
    ("last_s", "progress_s", "found"),
    [
        ((600.0, 600.0), 0.0, True),
        ((599.0, 600.0), 0.0, False),
        ((600.0, 599.0), 0.0, False),
        ((1000.0, 1000.0), 401.0, False),
        ((1000.0, 1000.0), 400.0, True),
        # Nobody has heard worker 1 since: its silence is another matter.
        ((9000.0, 10.0), 0.0, False),
    ],
)
def test_silence_about_progress_counts_as_long_as_all_workers_are_heard(
    last_s: tuple[float, ...], progress_s: float, found: bool
) -> None:
    assert hangs(heard(*last_s, progress_s=progress_s)) is found


def test_a_worker_that_was_never_heard_leaves_it_open() -> None:
    assert not hangs(heard(9000.0))
    assert not hangs(None)
    assert hangs(heard(9000.0), running=(0,))


def test_workers_that_have_ended_are_not_waited_for() -> None:
    assert hangs(heard(9000.0, 5.0), running=(0,))
    assert not hangs(heard(9000.0, 5.0), running=())


def test_time_before_all_ran_does_not_count() -> None:
    assert not hangs(heard(1000.0, 1000.0), running_since_s=401.0)
    assert hangs(heard(1000.0, 1000.0), running_since_s=400.0)


def test_time_in_which_the_operator_could_not_hear_does_not_count() -> None:
    assert not hangs(heard(1000.0, 1000.0), hearing_since_s=401.0)
    assert hangs(heard(1000.0, 1000.0), hearing_since_s=400.0)


@pytest.mark.parametrize("state", ["Pending", "Initializing", "Restarting", "Suspended", "Completed", "Failed"])
def test_only_a_job_that_runs_hangs(state: str) -> None:
    assert not hangs(heard(9000.0, 9000.0), job=job(state=state))


def test_without_a_deadline_no_hang_is_looked_for() -> None:
    without = training_job(status={"state": "Running"})
    assert not hangs(heard(1e9, 1e9), job=without)
    assert hang_due_s(without, heard(0.0), running_since_s=0.0, receiving_since_s=0.0) is None


def test_what_an_earlier_attempt_said_proves_nothing() -> None:
    assert not hangs(heard(9000.0, 9000.0), job=job(restartCount=1))
    assert hangs(heard(9000.0, 9000.0, attempt=1), job=job(restartCount=1))


def test_people_read_how_long_and_since_which_epoch() -> None:
    loss = find_hang(job(currentEpoch=4), heard(700.4, 700.4), (0, 1), running_since_s=0.0, receiving_since_s=0.0)
    assert loss is not None
    assert loss.message == (
        "the workers live and no progress was reported for 700 s, after epoch 4 (progressDeadlineSeconds is 600)"
    )


def test_it_is_looked_for_when_it_can_first_be_found() -> None:
    assert hang_due_s(job(), heard(5.0, progress_s=100.0), running_since_s=50.0, receiving_since_s=70.0) == 700.0
    assert hang_due_s(job(), heard(5.0, progress_s=100.0), running_since_s=50.0, receiving_since_s=170.0) == 770.0
    assert hang_due_s(job(), None, running_since_s=0.0, receiving_since_s=0.0) is None


_times = st.floats(0, 5000)


@given(st.lists(_times, min_size=2, max_size=2), _times, _times, _times)
def test_a_hang_means_that_for_so_long_everything_was_heard_and_nothing_came(
    last_s: list[float], progress_s: float, running_since_s: float, hearing_since_s: float
) -> None:
    found = hangs(
        heard(*last_s, progress_s=progress_s), running_since_s=running_since_s, hearing_since_s=hearing_since_s
    )
    quiet_s = min(min(last_s) - each for each in (progress_s, running_since_s, hearing_since_s))
    assert found == (quiet_s >= LIMIT_S)


def test_a_job_without_a_status_does_not_hang() -> None:
    assert not hangs(heard(9000.0, 9000.0), job=structs.replace(job(), status=None))
