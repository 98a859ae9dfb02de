"""How long a retry waits."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.decisions import GiveUp, Retry
from holdfast.gpuworkload.decision import JITTER, backoff_s, retry_or_give_up, retry_time
from holdfast.gpuworkload.snapshot import TIMING
from holdfast.pods.failure import WorkerFailure
from tests.gpuworkloads import RUNNING, SCHEDULED, workload
from tests.trainingjobs import at, stamp

FAILED = WorkerFailure(cause="application", message="exit 3")
LOST = WorkerFailure(cause="preemption", message="taken away")


def failing(retries: int, backoff_s: int = 30) -> GPUWorkload:
    policy = {"maxRetries": 1000, "backoffSeconds": backoff_s}
    return workload({"retryPolicy": policy}, {**RUNNING, "retryCount": retries})


@pytest.mark.parametrize(
    ("retries", "base_s", "even_s"), [(0, 30, 30), (1, 30, 60), (2, 30, 120), (3, 30, 240), (0, 1, 1), (8, 1, 256)]
)
def test_the_wait_doubles_with_each_retry_give_or_take_a_tenth(retries: int, base_s: int, even_s: int) -> None:
    waits = [backoff_s(base_s, retries, f"uid-{number}", TIMING) for number in range(500)]
    assert even_s * (1 - JITTER) <= min(waits) < even_s * (1 - JITTER / 2)
    assert even_s * (1 + JITTER / 2) < max(waits) <= even_s * (1 + JITTER)
    assert even_s * 0.98 < sum(waits) / len(waits) < even_s * 1.02


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(-1, 10_000), st.text())
def test_no_wait_is_longer_than_the_cap_nor_shorter_than_nine_tenths_of_the_base(
    base_s: int, retries: int, uid: str
) -> None:
    assert base_s * 0.9 <= backoff_s(base_s, retries, uid, TIMING) <= TIMING.retry_cap_s


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 1000), st.floats(0, 1, exclude_max=True))
def test_what_is_written_is_a_whole_second_within_the_cap(base_s: int, retries: int, part: float) -> None:
    now = at(part)
    found = retry_or_give_up(FAILED, failing(retries, base_s), now, TIMING) if retries < 1000 else None
    if found is not None:
        assert isinstance(found, Retry)
        assert found.at is not None
        assert found.at.microsecond == 0
        assert timedelta() <= found.at - now <= timedelta(seconds=TIMING.retry_cap_s)
        wait = backoff_s(base_s, retries, failing(0).metadata.uid, TIMING)
        assert found.at - now >= timedelta(seconds=wait - 1)


def test_the_same_failure_decided_twice_waits_the_same() -> None:
    first, second = (retry_or_give_up(FAILED, failing(2), at(10), TIMING) for _ in range(2))
    assert first == second


def test_two_workloads_that_fail_together_do_not_come_back_together() -> None:
    assert len({backoff_s(30, 1, f"uid-{number}", TIMING) for number in range(100)}) == 100


@pytest.mark.parametrize("policy", [None, {"maxRetries": 3}])
def test_without_a_policy_there_are_three_retries(policy: dict[str, int] | None) -> None:
    spec = {"retryPolicy": policy} if policy else {}
    assert isinstance(retry_or_give_up(FAILED, workload(spec, {"retryCount": 2}), at(0), TIMING), Retry)
    given_up = retry_or_give_up(FAILED, workload(spec, {"retryCount": 3}), at(0), TIMING)
    assert given_up == GiveUp("RetriesExhausted", "exit 3 (after 3 of 3 retries)")


@pytest.mark.parametrize(
    ("name", "retries", "ran_s", "waits_s"),
    [
        ("eval-job", 0, 5, None),
        ("eval-job-1", 1, 5, None),  # the try before failed by itself
        ("eval-job-1", 0, 5, 10),
        ("eval-job-2", 0, 5, 20),
        ("eval-job-3", 1, 5, 20),
        ("eval-job-9", 0, 5, 300),
        ("eval-job-99999", 0, 5, 300),
        ("eval-job-9", 0, TIMING.stable_after_s, None),
    ],
)
def test_nodes_that_are_lost_in_a_row_are_replaced_ever_more_slowly(
    name: str, retries: int, ran_s: float, waits_s: float | None
) -> None:
    it = workload(status={**RUNNING, "jobName": name, "retryCount": retries})
    expected = at(ran_s + waits_s) if waits_s is not None else None
    assert retry_or_give_up(LOST, it, at(ran_s), TIMING) == Retry(LOST, expected)


def test_a_node_that_is_stopped_is_gone_back_to_without_a_wait() -> None:
    stopped = WorkerFailure(cause="infrastructure", message="holdfast was stopped", node_stopped=True)
    assert retry_or_give_up(stopped, workload(status={**RUNNING, "jobName": "eval-job-9"}), at(5), TIMING) == Retry(
        stopped, None
    )


def test_an_attempt_that_never_ran_is_one_of_the_row_however_long_it_took() -> None:
    """Else one whose pod is turned away everywhere would ask for new Jobs without a pause."""
    it = workload(status={**SCHEDULED, "jobName": "eval-job-3"})
    assert retry_or_give_up(LOST, it, at(100_000), TIMING) == Retry(LOST, at(100_000 + 40))


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_jumps_makes_a_wait_neither_endless_nor_twice_too_short(jump_s: float) -> None:
    """Set back it ends at once, set forward too; the next one is of full length by the new clock."""
    status = {**RUNNING, "phase": "Pending", "assignedNode": None, "nextRetryTime": stamp(60), "retryCount": 1}
    before = workload(status=status).status
    assert before is not None
    assert retry_time(before, at(10), TIMING) == at(60)
    assert retry_time(before, at(10 + jump_s), TIMING) is None
    again = retry_or_give_up(FAILED, failing(1), at(10 + jump_s), TIMING)
    assert isinstance(again, Retry)
    assert again.at is not None
    assert again.at - at(10 + jump_s) >= timedelta(seconds=60 * (1 - JITTER))


@pytest.mark.parametrize(
    ("seconds", "due"),
    [(0, True), (59.5, True), (60, False), (10_000, False), (60 - TIMING.retry_cap_s, True), (-10_000, False)],
)
def test_a_retry_is_due_at_its_time_and_when_clocks_disagree(seconds: float, due: bool) -> None:
    status = workload(status={"nextRetryTime": stamp(60)}).status
    assert status is not None
    assert retry_time(status, at(seconds), TIMING) == (at(60) if due else None)
