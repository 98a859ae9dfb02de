"""A worker is lost when neither it nor its node has given a sign of life."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.core.objects import Pod
from holdfast.trainingjob.decide.liveness import (
    LEASE_CHECK_EVERY_S,
    LONGEST_GAP_S,
    OVERDUE_S,
    AttemptReports,
    LeaseObservation,
    WorkerReports,
    next_lease_check_s,
    next_overdue,
    node_failure,
    observe_lease,
    overdue,
    silent_workers,
    without_stale,
    workers_on_dead_nodes,
    workers_on_doubtful_nodes,
)
from holdfast.trainingjob.decide.snapshot import TIMING
from tests.trainingjobs import at, deleted, running, worker

PODS = (running(0, node="a"), running(1, node="b"))


def heard(*last_s: float) -> AttemptReports:
    return AttemptReports(0, 0.0, 0.0, {index: WorkerReports(at_s) for index, at_s in enumerate(last_s)})


def suspected(heard: AttemptReports | None, *, now_s: float, hearing_since_s: float = 0.0) -> list[str]:
    found = silent_workers(PODS, heard, receiving_since_s=hearing_since_s, now_s=now_s, timing=TIMING)
    return [pod.spec.node_name for pod in found]


def looked(*looks: tuple[float, str]) -> LeaseObservation:
    pulse: LeaseObservation | None = None
    for now_s, renewed in looks:
        pulse = observe_lease(pulse, renewed, now_s)
    assert pulse is not None
    return pulse


def is_dead(*looks: tuple[float, str]) -> bool:
    return bool(workers_on_dead_nodes(PODS[:1], {"a": looked(*looks)}, TIMING))


def test_a_worker_that_was_heard_and_is_silent_for_15_seconds_is_looked_after() -> None:
    assert suspected(heard(100.0, 110.0), now_s=114.9) == []
    assert suspected(heard(100.0, 110.0), now_s=115.0) == ["a"]
    assert suspected(heard(100.0, 110.0), now_s=125.0) == ["a", "b"]


def test_nobody_is_missed_before_somebody_was_heard() -> None:
    assert suspected(None, now_s=1e6) == []


def test_a_worker_that_died_before_its_first_word_is_missed_once_another_was_heard() -> None:
    first_s = 100.0
    one = AttemptReports(0, first_s, first_s, {0: WorkerReports(1e6)})
    assert suspected(one, now_s=first_s + 14.9) == []
    assert suspected(one, now_s=first_s + 15.0) == ["b"]
    assert suspected(one, now_s=first_s + 15.0, hearing_since_s=110.0) == []


def test_who_stays_beyond_its_grace_is_looked_after_and_who_has_ended_is_not() -> None:
    leaving = deleted(running(0, node="a"), asked=0, grace_s=5)
    assert overdue([leaving], at(5 + OVERDUE_S - 1)) == ()
    assert overdue([leaving], at(5 + OVERDUE_S)) == (leaving,)
    assert next_overdue([leaving], at(0)) == at(5 + OVERDUE_S)
    assert next_overdue([leaving], at(60)) == at(60 + LEASE_CHECK_EVERY_S)
    for nobody in (
        running(0, node="a"),
        deleted(worker(0, {"phase": "Failed"}, node="a"), asked=0),
        deleted(running(0, node=""), asked=0),
    ):
        assert overdue([nobody], at(600)) == ()
        assert next_overdue([nobody], at(600)) is None


def test_silence_counts_only_while_the_operator_could_hear() -> None:
    assert suspected(heard(100.0, 100.0), now_s=200.0, hearing_since_s=186.0) == []
    assert suspected(heard(100.0, 100.0), now_s=201.0, hearing_since_s=186.0) == ["a", "b"]


@pytest.mark.parametrize(
    "pod",
    [worker(0, {"phase": "Pending"}, node="a"), worker(0, {"phase": "Succeeded"}, node="a"), running(0, node="")],
    ids=["pending", "ended", "nowhere"],
)
def test_only_a_worker_that_should_be_running_is_missed(pod: Pod) -> None:
    for each in (pod, deleted(running(0, node="a"), asked=0)):
        assert silent_workers([each], heard(0.0), receiving_since_s=0.0, now_s=1e6, timing=TIMING) == ()
        assert next_lease_check_s([each], heard(0.0), receiving_since_s=0.0, now_s=1e6, timing=TIMING) is None


def test_a_node_whose_lease_stands_still_for_20_seconds_is_dead() -> None:
    assert not is_dead((0, "x"), (9, "x"), (18, "x"), (19.9, "x"))
    assert is_dead((0, "x"), (9, "x"), (18, "x"), (20, "x"))


def test_a_node_whose_lease_changes_lives() -> None:
    assert not is_dead((0, "x"), (8, "y"), (16, "y"), (24, "y"))
    assert not is_dead((0, "x"), (8, "x"), (16, "x"), (24, "y"))


def test_a_lease_may_say_any_time() -> None:
    assert not is_dead((0, "2030-01-01T00:00:00Z"), (9, "2020-01-01T00:00:00Z"), (18, "2020-01-01T00:00:00Z"))


def test_one_look_proves_nothing() -> None:
    assert not is_dead((1e6, "1970-01-01T00:00:00Z"))


def test_looks_with_a_gap_between_them_prove_nothing() -> None:
    """While the API server was away the node could not renew its Lease either."""
    assert not is_dead((0, "x"), (9, "x"), (40, "x"), (49, "x"))
    assert is_dead((0, "x"), (9, "x"), (40, "x"), (49, "x"), (58, "x"), (60, "x"))


def test_what_was_seen_too_long_ago_is_forgotten() -> None:
    pulses = {"a": looked((0, "x"), (8, "x")), "b": looked((8, "x"), (16, "x"))}
    assert without_stale(pulses, 8 + LONGEST_GAP_S) == pulses
    assert without_stale(pulses, 9 + LONGEST_GAP_S) == {"b": pulses["b"]}
    assert without_stale(pulses, 17 + LONGEST_GAP_S) == {}


def test_a_node_without_a_lease_is_not_dead() -> None:
    assert workers_on_dead_nodes(PODS, {}, TIMING) == ()


def test_only_workers_of_the_dead_node_are_lost() -> None:
    dead, alive = looked((0, "x"), (10, "x"), (20, "x")), looked((0, "x"), (10, "x"), (20, "y"))
    assert workers_on_dead_nodes(PODS, {"a": dead, "b": alive}, TIMING) == PODS[:1]


def test_nodes_that_are_lost_together_and_missed_one_after_another_go_together() -> None:
    dead, following = looked((0, "x"), (10, "x"), (20, "x")), looked((5, "x"), (14, "x"), (20, "x"))
    alive = looked((0, "x"), (9, "y"), (19, "y"), (20, "y"))
    assert workers_on_doubtful_nodes(PODS, {"a": dead, "b": following}, TIMING) == PODS
    assert workers_on_doubtful_nodes(PODS, {"a": dead, "b": alive}, TIMING) == PODS[:1]
    assert workers_on_doubtful_nodes(PODS, {"a": dead}, TIMING) == PODS[:1]


def test_the_loss_says_what_was_not_heard() -> None:
    loss = node_failure(PODS[1], "preemption", TIMING)
    assert loss.cause == "preemption"
    assert loss.message == (
        "worker 1 on b was lost: it has not reported for more than 15 s, "
        "and its node has not renewed its Lease for 20 s"
    )


@pytest.mark.parametrize(
    ("now_s", "due_s"),
    [(0.0, 115.0), (114.0, 115.0), (115.0, 115.0 + LEASE_CHECK_EVERY_S), (300.0, 300.0 + LEASE_CHECK_EVERY_S)],
)
def test_the_next_look_is_when_the_first_falls_silent_and_then_often_enough(now_s: float, due_s: float) -> None:
    assert next_lease_check_s(PODS, heard(100.0, 110.0), receiving_since_s=0.0, now_s=now_s, timing=TIMING) == due_s
    assert LEASE_CHECK_EVERY_S < LONGEST_GAP_S


_looks = st.lists(st.tuples(st.floats(0.1, 30.0), st.sampled_from("xy")), min_size=1, max_size=12)


@given(_looks)
def test_a_dead_node_was_looked_at_without_a_gap_and_never_changed(steps: list[tuple[float, str]]) -> None:
    now_s, looks = 0.0, []
    for after_s, renewed in steps:
        now_s += after_s
        looks.append((now_s, renewed))
    stood_still_s = 0.0
    for (before_s, old), (after_s, new) in reversed(list(pairwise(looks))):
        if old != new or after_s - before_s > LONGEST_GAP_S:
            break
        stood_still_s = looks[-1][0] - before_s
    assert is_dead(*looks) == (stood_still_s >= TIMING.node_lease_timeout_s)
