import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.local.controllers.job_policies import BASE_S, CAP_S, backoff_remaining_s, remaining_of_index_s
from tests.local.controllers.things import NOW, ago, worker


@pytest.mark.parametrize(
    ("succeeded", "failed", "left_s"),
    [
        ([], [], 0),
        ([], [0], 10),
        ([], [4], 6),
        ([], [11], 0),
        ([], [5, 0], 20),
        ([], [90, 50, 0], 40),
        ([3], [90, 50, 0], 10),
        ([60], [90, 50, 0], 20),
        ([0], [90, 50], 0),
        ([50], [90, 50], 0),
        ([], [1000] * 30 + [100], 500),
    ],
)
def test_the_wait_grows_with_the_failures_since_the_last_success(
    succeeded: list[float], failed: list[float], left_s: float
) -> None:
    good = [worker("Succeeded", ended=ago(seconds)) for seconds in succeeded]
    bad = [worker("Failed", ended=ago(seconds)) for seconds in failed]
    assert backoff_remaining_s(good, bad, NOW) == left_s


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30))
def test_no_job_waits_longer_than_the_cap_after_the_last_failure(failed: list[int]) -> None:
    left_s = backoff_remaining_s([], [worker("Failed", ended=ago(seconds)) for seconds in failed], NOW)
    assert 0 <= left_s <= CAP_S - min(failed) or left_s == 0


def test_an_end_that_lies_ahead_of_our_clock_is_waited_for() -> None:
    assert backoff_remaining_s([], [worker("Failed", ended=ago(-5))], NOW) == BASE_S + 5


@pytest.mark.parametrize(("failures", "left_s"), [(0, 7), (1, 17), (2, 37), (9, 597), (10**6, 597)])
def test_an_index_waits_by_its_own_count(failures: int, left_s: float) -> None:
    assert remaining_of_index_s(worker("Failed", index=0, failures=failures, ended=ago(3)), NOW) == left_s


def test_an_index_that_never_failed_does_not_wait() -> None:
    assert remaining_of_index_s(None, NOW) == 0
