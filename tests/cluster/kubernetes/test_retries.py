from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.kubernetes.retries import FailedAttempt, RetryLimits, RetrySchedule, parse_retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def waits(failure: FailedAttempt, patience: RetryLimits | None = None, seed: int = 0) -> list[float]:
    schedule = RetrySchedule(patience or RetryLimits(), Random(seed))
    found = []
    while (wait_s := schedule.next_wait_s(failure)) is not None:
        found.append(wait_s)
    return found


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        (FailedAttempt(write=False, sent=True, status=429), 10),
        (FailedAttempt(write=True, sent=True, status=429), 10),
        (FailedAttempt(write=True, sent=True, status=429, retry_after_s=0.0), 10),
        (FailedAttempt(write=True, sent=True, status=503, retry_after_s=0.0), 10),
        (FailedAttempt(write=True, sent=True, status=503), 1),
        (FailedAttempt(write=False, sent=True, status=503), 1),
        (FailedAttempt(write=False, sent=True, status=504, retry_after_s=0.0), 10),
        (FailedAttempt(write=True, sent=True, status=504, retry_after_s=0.0), 1),
        (FailedAttempt(write=True, sent=True, status=500, retry_after_s=0.0), 1),
        (FailedAttempt(write=False, sent=True, status=404), 1),
        (FailedAttempt(write=False, sent=True, status=403, retry_after_s=0.0), 1),
        (FailedAttempt(write=True, sent=True, status=409, retry_after_s=0.0), 1),
        (FailedAttempt(write=False, sent=False), 4),
        (FailedAttempt(write=False, sent=True), 4),
        (FailedAttempt(write=True, sent=False), 4),
        (FailedAttempt(write=True, sent=True), 1),
        (FailedAttempt(write=False, sent=False, final=True), 1),
    ],
)
def test_a_failure_is_tried_again_as_often_as_is_safe_and_useful(failure: FailedAttempt, tries: int) -> None:
    assert len(waits(failure)) == tries - 1


@given(seconds=st.floats(min_value=0, max_value=100), seed=st.integers())
def test_the_server_is_never_asked_sooner_than_it_wants_nor_waited_for_without_end(seconds: float, seed: int) -> None:
    found = waits(FailedAttempt(write=True, sent=True, status=429, retry_after_s=seconds), seed=seed)
    assert all(wait_s >= seconds for wait_s in found)
    assert sum(found) <= RetryLimits().total_wait_s


@given(write=st.booleans(), seed=st.integers())
def test_without_an_answer_the_waits_grow_up_to_a_limit(write: bool, seed: int) -> None:
    patience = RetryLimits(connection_attempts=12, first_backoff_s=0.1, longest_backoff_s=2.0)
    found = waits(FailedAttempt(write=write, sent=False), patience, seed)
    ceilings = [min(0.1 * 2**number, 2.0) for number in range(len(found))]
    assert len(found) == 11
    assert all(ceiling / 2 <= wait_s <= ceiling for wait_s, ceiling in zip(found, ceilings, strict=True))


def test_two_clients_that_failed_together_don_t_come_back_together() -> None:
    failure = FailedAttempt(write=False, sent=True, status=429, retry_after_s=5.0)
    assert waits(failure, seed=1)[0] != waits(failure, seed=2)[0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sun, 01 Mar 2026 13:00:30 +0100", 30.0),
        ("Sun, 01 Mar 2026 12:00:30 -0000", 30.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, lambda: NOW) == seconds
