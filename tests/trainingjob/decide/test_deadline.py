"""Moments that come by themselves: the deadline without suspensions, the next try, the deletion."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.trainingjob import TrainingJob
from holdfast.trainingjob.decide.restart import deadline, expiry, retry_time, suspended_for_s
from tests.trainingjobs import at, stamp, training_job


def condition(kind: str, since: float, *, holds: bool = True) -> dict[str, Any]:
    status = "True" if holds else "False"
    return {"type": kind, "status": status, "reason": "X", "message": "", "lastTransitionTime": stamp(since)}


def limited(**status: Any) -> TrainingJob:
    return training_job({"failurePolicy": {"activeDeadlineSeconds": 100}}, status={"startTime": stamp(0), **status})


@pytest.mark.parametrize(
    ("job", "now", "due"),
    [
        (training_job(), 50, None),
        (training_job(status={"startTime": stamp(0)}), 50, None),
        (training_job({"failurePolicy": {}}, status={"startTime": stamp(0)}), 50, None),
        (training_job({"failurePolicy": {"activeDeadlineSeconds": 100}}), 50, None),
        (training_job({"failurePolicy": {"activeDeadlineSeconds": 100}}, status={"state": "Pending"}), 50, None),
        (limited(), 50, 100),
        (limited(), 5000, 100),
        (limited(restartCount=7), 50, 100),
        (limited(suspendedSeconds=40), 50, 140),
        (limited(conditions=[condition("Suspended", 30)]), 50, 120),
        (limited(conditions=[condition("Suspended", 30)], suspendedSeconds=40), 50, 160),
        (limited(conditions=[condition("Suspended", 30, holds=False)]), 50, 100),
        # A clock that was set back does not shorten the time.
        (limited(conditions=[condition("Suspended", 60)]), 50, 100),
    ],
)
def test_the_deadline_counts_all_attempts_and_no_suspension(job: TrainingJob, now: float, due: float | None) -> None:
    assert deadline(job, at(now)) == (None if due is None else at(due))


@given(st.integers(0, 100), st.floats(0, 10**6))
def test_time_stands_still_while_a_job_is_suspended(since: int, passed: float) -> None:
    job = limited(conditions=[condition("Suspended", since)])
    due = deadline(job, at(since + passed))
    assert due is not None
    assert (due - at(since + passed)).total_seconds() == pytest.approx(100 - since)


def test_only_the_condition_suspended_stops_the_time() -> None:
    job = limited(conditions=[condition("Restarting", 0)])
    assert job.status is not None
    assert suspended_for_s(job.status, at(50)) == 0


def test_the_next_try_is_what_status_says() -> None:
    assert retry_time(training_job()) is None
    assert retry_time(training_job(status={"state": "Restarting"})) is None
    assert retry_time(training_job(status={"nextRetryTime": stamp(5)})) == at(5)


@pytest.mark.parametrize(
    ("ttl", "status", "due"),
    [
        (None, {"completionTime": stamp(10)}, None),
        (60, None, None),
        (60, {"state": "Running"}, None),
        (60, {"completionTime": stamp(10)}, 70),
        (0, {"completionTime": stamp(10)}, 10),
    ],
)
def test_an_ended_job_goes_when_its_time_to_live_is_over(
    ttl: int | None, status: dict[str, Any] | None, due: float | None
) -> None:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    assert expiry(training_job(spec, status=status)) == (None if due is None else at(due))
