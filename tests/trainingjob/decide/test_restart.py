"""What follows a loss: the policy, the restarts so far, how long the attempt lasted → another try, or the end."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.trainingjob_status import RestartCounts
from holdfast.decisions import GiveUp, Retry
from holdfast.pods.failure import CLASSES, FREE, FailureClass, WorkerFailure
from holdfast.trainingjob.decide.restart import backoff_s, restart_or_give_up, restarts_against_limit, with_restart
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobTiming
from tests.trainingjobs import at, training_job, workers

CHARGED = tuple(cause for cause in CLASSES if cause not in FREE)
CODES = (1, 127, 128, 137, 255, None)


def loss(cause: FailureClass, exit_code: int | None = None) -> WorkerFailure:
    return WorkerFailure(cause=cause, message="worker 0 broke", exit_code=exit_code)


def follows(
    what: WorkerFailure, policy: dict[str, Any] | None = None, status: dict[str, Any] | None = None, *, now: float = 60
) -> Retry | GiveUp:
    spec = {"failurePolicy": policy} if policy is not None else {}
    return restart_or_give_up(what, training_job(spec, status=status), workers(), at(now), TIMING)


@pytest.mark.parametrize("policy", ["OnFailure", "Always", "Never", "ExitCode"])
@pytest.mark.parametrize("cause", FREE)
def test_a_free_loss_is_always_followed_by_another_try(policy: str, cause: FailureClass) -> None:
    used = {"restarts": {"application": 99, cause: 99}}
    for code in CODES:
        assert isinstance(follows(loss(cause, code), {"restartPolicy": policy, "backoffLimit": 0}, used), Retry)


@pytest.mark.parametrize("cause", CHARGED)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("policy", "final"),
    [("OnFailure", ()), ("Always", ()), ("Never", CODES), ("ExitCode", (1, 127))],
)
def test_the_policy_says_after_which_codes_a_charged_loss_is_final(
    cause: FailureClass, code: int | None, policy: str, final: tuple[int | None, ...]
) -> None:
    assert isinstance(follows(loss(cause, code), {"restartPolicy": policy}), GiveUp) == (code in final)


@pytest.mark.parametrize(
    ("policy", "restarts", "expected"),
    [
        ({"restartPolicy": "Never"}, {}, ("RestartPolicyNever", "worker 0 broke (restartPolicy is Never)")),
        (
            {"restartPolicy": "ExitCode"},
            {},
            ("PermanentExitCode", "worker 0 broke (restartPolicy ExitCode: codes 1 to 127 are final)"),
        ),
        ({"backoffLimit": 0}, {}, ("BackoffLimitExceeded", "worker 0 broke (after 0 of 0 restarts)")),
        (
            {"backoffLimit": 2},
            {"outOfMemory": 1, "application": 1, "preemption": 5},
            ("BackoffLimitExceeded", "worker 0 broke (after 2 of 2 restarts)"),
        ),
        # The limit was lowered below what is used.
        ({"backoffLimit": 1}, {"hang": 3}, ("BackoffLimitExceeded", "worker 0 broke (after 3 of 1 restarts)")),
    ],
)
def test_the_end_says_why_there_is_no_other_try(
    policy: dict[str, Any], restarts: dict[str, int], expected: tuple[str, str]
) -> None:
    end = follows(loss("application", 1), policy, {"restarts": restarts})
    assert isinstance(end, GiveUp)
    assert (end.reason, end.message) == expected


@pytest.mark.parametrize("policy", ["OnFailure", "Always", "Never", "ExitCode"])
def test_a_permanent_cause_fails_at_once_under_every_policy(policy: str) -> None:
    permanent = WorkerFailure(cause="application", message="worker 0 broke", exit_code=2, permanent=True)
    end = follows(permanent, {"restartPolicy": policy, "backoffLimit": 99})
    assert end == GiveUp("PermanentFailure", "worker 0 broke (a new attempt would fail in the same way)")


@pytest.mark.parametrize("cause", CHARGED)
def test_without_a_policy_there_are_three_charged_restarts(cause: FailureClass) -> None:
    field = {"restarts": {cause: 2}}
    assert isinstance(follows(loss(cause), status=field), Retry)
    assert isinstance(follows(loss(cause), status={"restarts": {cause: 3}}), GiveUp)
    assert isinstance(follows(loss(cause), status={"restarts": {"preemption": 9, "infrastructure": 9}}), Retry)


def tries(lasted_s: float, quick_restarts: int) -> tuple[int, datetime | None]:
    retry = follows(loss("preemption"), status={"quickRestarts": quick_restarts}, now=lasted_s)
    assert isinstance(retry, Retry)
    return retry.consecutive, retry.at


@pytest.mark.parametrize(
    ("quick_restarts", "wait"),
    [(0, None), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300), (10_000, 300)],
)
def test_the_first_try_is_at_once_and_then_the_wait_doubles_to_a_cap(quick_restarts: int, wait: int | None) -> None:
    assert tries(60, quick_restarts) == (quick_restarts + 1, at(60 + wait) if wait else None)


def test_an_attempt_that_lasted_ends_the_row() -> None:
    assert tries(TIMING.stable_after_s - 1, 5) == (6, at(TIMING.stable_after_s - 1 + 160))
    assert tries(TIMING.stable_after_s, 5) == (1, None)


@pytest.mark.parametrize(("lasted_s", "in_a_row"), [(60, 5), (TIMING.stable_after_s, 0)])
def test_a_node_that_is_stopped_neither_lengthens_the_row_nor_waits(lasted_s: float, in_a_row: int) -> None:
    stopped = WorkerFailure(cause="infrastructure", message="holdfast was stopped", node_stopped=True)
    assert follows(stopped, status={"quickRestarts": 5}, now=lasted_s) == Retry(stopped, None, in_a_row)


def test_a_machine_that_is_taken_back_again_and_again_is_waited_for_though_it_stops_in_order() -> None:
    taken_back = WorkerFailure(cause="preemption", message="spot", node_stopped=True)
    assert follows(taken_back, status={"quickRestarts": 1}) == Retry(taken_back, at(70), 2)


@pytest.mark.parametrize("job", [None, workers(status={"startTime": ""})])
def test_an_attempt_that_never_started_did_not_last(job: Any) -> None:
    retry = restart_or_give_up(loss("preemption"), training_job(status={"quickRestarts": 1}), job, at(10**6), TIMING)
    assert isinstance(retry, Retry)
    assert retry.consecutive == 2


@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(100, 1000))
def test_the_wait_never_shrinks_nor_exceeds_its_cap(row: int, first_s: float, cap_s: float) -> None:
    timing = TrainingJobTiming(retry_s=first_s, retry_cap_s=cap_s)
    assert 0 <= backoff_s(row, timing) <= backoff_s(row + 1, timing) <= cap_s


@pytest.mark.parametrize("cause", CLASSES)
def test_a_restart_is_counted_under_its_class_alone(cause: FailureClass) -> None:
    before = RestartCounts(preemption=1, infrastructure=2, out_of_memory=3, hang=4, application=5)
    old = [1, 2, 3, 4, 5]
    new = with_restart(before, cause)
    counts = [new.preemption, new.infrastructure, new.out_of_memory, new.hang, new.application]
    assert counts == [count + (name == cause) for count, name in zip(old, CLASSES, strict=True)]
    assert restarts_against_limit(new) == restarts_against_limit(before) + (cause not in FREE)


def test_the_first_restart_is_counted_from_nothing() -> None:
    assert with_restart(None, "hang") == RestartCounts(hang=1)
    assert restarts_against_limit(None) == 0
