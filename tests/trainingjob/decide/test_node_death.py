"""A worker is lost when neither it nor its node has given a sign of life, and nothing answers there."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.trainingjob.decide.liveness import OVERDUE_S, AttemptReports, WorkerReports
from holdfast.trainingjob.decide.node_death import (
    AWAY_S,
    CHECK_EVERY_S,
    DOUBT_FRACTION,
    FOLLOWING_FRACTION,
    INTERVALS_KEPT,
    LATE_CHECK_EVERY_S,
    LATE_INTERVALS,
    LONGEST_GAP_S,
    RENEWED_S,
    WEDGED_S,
    AddressHistory,
    Answer,
    Evidence,
    LeaseHistory,
    Reach,
    Serving,
    Verdict,
    judge,
    most_are_late,
    next_check_s,
    node_failure,
    observe_answer,
    observe_lease,
    observe_serving,
    overdue_nodes,
    reach_of,
    worker_nodes,
)
from holdfast.trainingjob.decide.snapshot import TIMING
from tests.trainingjobs import at, deleted, running, worker

NOW_S = 1000.0
PODS = (running(0, node="a"), running(1, node="b"))


def evidence(
    *,
    silent: float = 40.0,
    still: float = 25.0,
    checked: float = 0.0,
    serving: float = 600.0,
    intervals: tuple[float, ...] = (10.0,),
    reach: Reach = "unreachable",
    most_are_late: bool = False,
) -> Evidence:
    """Of a dead node, but for what the test says; all in seconds before now."""
    lease = LeaseHistory("x", NOW_S - checked - still, NOW_S - checked, bool(intervals), intervals)
    return Evidence(
        now_s=NOW_S,
        heard_s=NOW_S - silent,
        lease=lease,
        serving_since_s=NOW_S - serving,
        reach=reach,
        most_are_late=most_are_late,
    )


# The decision.


@pytest.mark.parametrize(
    ("case", "state", "reason"),
    [
        # All three are silent.
        (evidence(silent=20, still=20), "dead", "no longer accepts connections"),
        (evidence(silent=19.9, still=60), "unknown", "its next report is not overdue for long"),
        (evidence(silent=14.9, still=60), "unknown", "its next report is not overdue"),
        (evidence(silent=16, still=19.9), "unknown", "its node's Lease is not overdue"),
        (evidence(silent=60, still=19.9), "alive", "has renewed its Lease"),
        (evidence(silent=60, still=30), "dead", "no longer accepts connections"),
        # The node has given a sign of life since the last report.
        (evidence(silent=600, still=5), "alive", "has renewed its Lease"),
        # Somebody takes connections there, if it is only the kernel of a node that is overloaded.
        (evidence(silent=600, still=119.9, reach="accepts"), "alive", "accepts connections"),
        (evidence(silent=119.9, still=600, reach="accepts"), "alive", "accepts connections"),
        (evidence(silent=600, still=600, serving=119.9, reach="accepts"), "alive", "accepts connections"),
        # … but for two minutes nothing else.
        (evidence(silent=120, still=120, reach="accepts"), "dead", "only accepted connections"),
        (evidence(silent=600, still=119.9, checked=5, reach="accepts"), "alive", "accepts connections"),
        (evidence(silent=600, still=5, reach="accepts"), "alive", "has renewed its Lease"),
        # It could not be asked: as long as when silence and Lease were watched one after the other.
        (evidence(silent=34.9, still=34, reach="unclear"), "unknown", "not clear whether its node can be reached"),
        (evidence(silent=35, still=20, reach="unclear"), "dead", "has not renewed its Lease for 20 s"),
        # This operator has not seen the node's rhythm.
        (evidence(silent=34.9, still=34, intervals=()), "unknown", "not seen its node's Lease for long enough"),
        (evidence(silent=35, still=20, intervals=()), "dead", "has not renewed its Lease for 20 s"),
        # Renewals of that node come slowly.
        (evidence(silent=30, still=33, intervals=(10, 18, 10)), "unknown", "its node's Lease is not overdue"),
        (evidence(silent=30, still=34.3, intervals=(10, 18, 10)), "dead", "no longer accepts connections"),
        # Others fell silent at the same time.
        (evidence(silent=34.9, still=34, most_are_late=True), "unknown", "most nodes"),
        (evidence(silent=35, still=34, most_are_late=True), "dead", "has not renewed its Lease for 20 s"),
        # The API server was away, for the node too.
        (evidence(silent=60, still=60, serving=19.9), "unknown", "the API server"),
        (evidence(silent=60, still=60, serving=20), "dead", "no longer accepts connections"),
        # The Lease can't be read.
        (evidence(still=60, checked=LONGEST_GAP_S + 0.1), "unknown", "can't be read"),
        (structs.replace(evidence(), lease=None), "unknown", "can't be read"),
        (structs.replace(evidence(), serving_since_s=None), "unknown", "can't be read"),
    ],
)
def test_what_the_witnesses_come_to(case: Evidence, state: str, reason: str) -> None:
    verdict = judge(case, TIMING)
    assert (verdict.state, reason in verdict.reason) == (state, True), verdict


def test_who_wants_more_patience_gets_it_for_a_node_that_accepts_connections_too() -> None:
    patient = structs.replace(TIMING, report_timeout_s=100.0, node_lease_timeout_s=100.0)
    assert judge(evidence(silent=199.9, still=600, reach="accepts"), patient).state == "alive"
    assert judge(evidence(silent=200, still=200, reach="accepts"), patient).state == "dead"


def test_once_a_node_is_dead_others_that_seem_to_follow_need_a_shorter_silence() -> None:
    following = evidence(silent=15, still=20 * FOLLOWING_FRACTION)
    assert judge(evidence(silent=14.9, still=15), TIMING, FOLLOWING_FRACTION).state == "unknown"
    assert judge(following, TIMING).state == "unknown"
    assert judge(following, TIMING, FOLLOWING_FRACTION).state == "dead"
    assert judge(evidence(silent=30, still=15, reach="unclear"), TIMING, FOLLOWING_FRACTION).state == "dead"
    assert judge(evidence(silent=29, still=15, reach="unclear"), TIMING, FOLLOWING_FRACTION).state == "unknown"
    assert judge(evidence(silent=60, still=60, reach="accepts"), TIMING, FOLLOWING_FRACTION).state == "alive"


_seconds = st.floats(0.0, 300.0)
_evidence = st.builds(
    evidence,
    silent=_seconds,
    still=_seconds,
    checked=st.floats(0.0, 20.0),
    serving=_seconds,
    intervals=st.lists(st.floats(1.0, 60.0), max_size=INTERVALS_KEPT).map(tuple),
    reach=st.sampled_from(("accepts", "unreachable", "unclear")),
    most_are_late=st.booleans(),
)


@given(_evidence)
def test_who_is_dead_gave_no_sign_that_could_have_been_seen(case: Evidence) -> None:
    lease, serving_s = case.lease, case.serving_since_s
    assert lease is not None
    assert serving_s is not None
    if judge(case, TIMING).state != "dead":
        return
    silent_s = case.now_s - case.heard_s
    assert silent_s >= max(TIMING.report_timeout_s, TIMING.node_lease_timeout_s)
    assert lease.checked_s - max(lease.since_s, serving_s) >= TIMING.node_lease_timeout_s
    assert case.now_s - lease.checked_s <= LONGEST_GAP_S
    assert case.reach != "accepts" or silent_s >= WEDGED_S
    was_known = bool(lease.intervals_s) and case.reach == "unreachable" and not case.most_are_late
    assert was_known or silent_s >= TIMING.report_timeout_s + TIMING.node_lease_timeout_s


@given(_evidence, st.floats(0.0, 100.0))
def test_a_dead_node_stays_dead_while_nothing_is_seen_of_it(case: Evidence, later_s: float) -> None:
    assert case.lease is not None
    lease = structs.replace(case.lease, checked_s=case.lease.checked_s + later_s)
    later = structs.replace(case, now_s=case.now_s + later_s, lease=lease)
    if judge(case, TIMING).state == "dead":
        assert judge(later, TIMING).state == "dead"


@given(_evidence)
def test_a_sign_of_life_never_makes_a_node_dead(case: Evidence) -> None:
    assert case.lease is not None
    silent_s = case.now_s - case.heard_s
    signs = (
        structs.replace(case, heard_s=case.now_s),
        structs.replace(case, lease=structs.replace(case.lease, since_s=case.now_s, checked_s=case.now_s)),
        structs.replace(case, reach="accepts", heard_s=case.now_s - min(silent_s, WEDGED_S - 1.0)),
        structs.replace(case, serving_since_s=case.now_s),
    )
    assert all(judge(each, TIMING).state != "dead" for each in signs)


def test_the_loss_says_what_was_not_heard() -> None:
    loss = node_failure(PODS[1], "preemption", judge(evidence(), TIMING))
    assert loss.cause == "preemption"
    assert loss.message == (
        "worker 1 on b was lost: it has not reported for more than 15 s, and its node has not renewed its Lease for "
        "20 s and no longer accepts connections"
    )
    assert node_failure(PODS[1], "preemption", Verdict("dead", "so")).message == "worker 1 on b was lost: so"


# Leases


def seen(*changes: tuple[float, str], serving: float = 0.0) -> LeaseHistory:
    history: LeaseHistory | None = None
    for at_s, version in changes:
        history = observe_lease(history, version, at_s, serving_since_s=serving)
    assert history is not None
    return history


def test_a_lease_stands_still_from_when_its_version_was_first_seen() -> None:
    found = seen((0, "x"), (9, "y"), (19, "y"), (22, "y"))
    assert (found.since_s, found.checked_s) == (9, 22)


def test_a_lease_may_say_any_time() -> None:
    assert seen((0, "2030-01-01T00:00:00Z"), (9, "2020-01-01T00:00:00Z")).since_s == 9


@pytest.mark.parametrize(
    ("changes", "intervals"),
    [
        (((0, "a"),), ()),
        (((0, "a"), (4, "b")), ()),  # how old the first one was nobody knows
        (((0, "a"), (4, "b"), (14, "c")), (10,)),
        (((0, "a"), (4, "b"), (9, "b"), (14, "c"), (25, "d")), (10, 11)),
        (((0, "a"), (1, "b"), (2, "c"), (4, "d"), (7, "e"), (11, "f")), (2, 3, 4)),
    ],
)
def test_the_rhythm_is_that_of_renewals_that_were_seen(
    changes: tuple[tuple[float, str], ...], intervals: tuple[float, ...]
) -> None:
    assert seen(*changes).intervals_s == intervals
    assert seen(*changes).has_rhythm == bool(intervals)


def test_the_rhythm_is_learned_anew_after_the_api_server_was_away() -> None:
    before = seen((0, "a"), (10, "b"), (20, "c"), (30, "d"))
    assert list(before.intervals_s) == [10, 10]
    assert observe_lease(before, "e", 90, serving_since_s=90).intervals_s == ()


def test_the_api_server_serves_while_something_comes_from_it_often_enough() -> None:
    serving = observe_serving(None, 0)
    for at_s in (10, 20, 32):
        serving = observe_serving(serving, at_s)
    assert serving == Serving(0, 32)
    assert observe_serving(serving, 30) == serving, "what is told late is no gap"
    assert observe_serving(serving, 32 + LONGEST_GAP_S + 0.1).since_s == 32 + LONGEST_GAP_S + 0.1


_steps = st.lists(st.tuples(st.floats(0.1, 30.0), st.sampled_from("xy")), min_size=1, max_size=12)


@given(_steps)
def test_a_lease_counts_as_still_only_while_it_did_not_change_and_could_have(steps: list[tuple[float, str]]) -> None:
    now_s, looks = 0.0, []
    lease: LeaseHistory | None = None
    serving: Serving | None = None
    for after_s, version in steps:
        now_s += after_s
        looks.append((now_s, version))
        serving = observe_serving(serving, now_s)
        lease = observe_lease(lease, version, now_s, serving_since_s=serving.since_s)
    assert lease is not None
    assert serving is not None
    still_s = 0.0
    for (before_s, old), (after_s, new) in reversed(list(pairwise(looks))):
        if old != new or after_s - before_s > LONGEST_GAP_S:
            break
        still_s = now_s - before_s
    assert lease.checked_s - max(lease.since_s, serving.since_s) == pytest.approx(still_s)


@pytest.mark.parametrize(
    ("still", "is_most"),
    [
        ((5, 5, 5, 16), False),
        ((5, 5, 16, 16), False),
        ((5, 16, 16, 16), True),
        ((16,), True),
        ((5, 16), False),
        ((5, 16, AWAY_S + 1, AWAY_S + 1), False),
        ((), False),
    ],
)
def test_most_nodes_are_late_when_more_than_half_of_those_that_renewed_of_late_are(
    still: tuple[float, ...], is_most: bool
) -> None:
    leases = [LeaseHistory("x", NOW_S - each, NOW_S, True, (10.0,)) for each in still]
    assert most_are_late(leases, NOW_S, TIMING) == is_most
    unknown = [LeaseHistory("x", NOW_S - 60, NOW_S)] * 9
    assert most_are_late([*leases, *unknown], NOW_S, TIMING) == is_most


# Connections


def tried(*attempts: tuple[float, Answer]) -> AddressHistory | None:
    """Each takes a second."""
    history: AddressHistory | None = None
    for asked_s, answer in attempts:
        history = observe_answer(history, answer, asked_s, asked_s + 1)
    return history


OPEN: tuple[float, Answer] = (10.0, "accepted")
GONE: tuple[float, Answer] = (52.0, "unreachable")


@pytest.mark.parametrize(
    ("kubelet", "sidecar", "reach"),
    [
        ((OPEN, GONE), (), "unreachable"),
        ((OPEN, GONE), (GONE,), "unreachable"),
        ((OPEN, GONE, (56.0, "unreachable")), (GONE,), "unreachable"),
        # One attempt may be bad luck.
        ((OPEN, (55.1, "unreachable")), (GONE,), "unclear"),
        ((OPEN, GONE, (54.0, "accepted"), (56.0, "unreachable")), (GONE,), "unclear"),
        # Nobody has ever reached it: there may be a firewall.
        ((GONE,), (GONE,), "unclear"),
        ((), (), "unclear"),
        # It was out of reach already while the worker still reported.
        ((OPEN, (40.0, "unreachable"), GONE), (GONE,), "unclear"),
        # … and was reached again.
        ((OPEN, (20.0, "unreachable"), (40.0, "accepted"), GONE), (GONE,), "unreachable"),
        # One of them takes a connection.
        ((OPEN, (52.0, "accepted")), (GONE,), "accepts"),
        ((OPEN, GONE), ((52.0, "accepted"),), "accepts"),
        ((GONE,), ((52.0, "accepted"),), "accepts"),
        # The machine is there, and the program is not; or the operator itself can't connect to anything.
        ((OPEN, (52.0, "refused")), (GONE,), "unclear"),
        ((OPEN, GONE), ((52.0, "refused"),), "unclear"),
        ((OPEN, (52.0, "failed")), (GONE,), "unclear"),
        # It answered by a refusal, or it could not be asked, a moment ago: what came before that shows nothing.
        ((OPEN, GONE, (55.0, "refused"), (57.0, "unreachable")), (GONE,), "unclear"),
        ((OPEN, GONE, (55.0, "failed"), (57.0, "unreachable")), (GONE,), "unclear"),
        ((OPEN, (51.0, "refused"), (53.0, "unreachable"), (57.0, "unreachable")), (GONE,), "unreachable"),
        # Both must have been asked since the last report, and of late.
        ((OPEN,), (GONE,), "unclear"),
        ((OPEN, GONE), ((49.0, "unreachable"),), "unclear"),
        ((OPEN, (52.0, "accepted")), ((49.0, "unreachable"),), "accepts"),
    ],
)
def test_what_attempts_to_connect_show(
    kubelet: tuple[tuple[float, Answer], ...], sidecar: tuple[tuple[float, Answer], ...], reach: Reach
) -> None:
    sidecars = [tried(*sidecar)] if sidecar else []
    assert reach_of(tried(*kubelet), sidecars, heard_s=50.0, now_s=60.0) == reach


def test_an_answer_of_long_ago_shows_nothing() -> None:
    cases: tuple[tuple[Answer, Reach], ...] = (("accepted", "accepts"), ("unreachable", "unreachable"))
    for answer, reach in cases:
        kubelet = tried(OPEN, (52.0, answer))
        assert reach_of(kubelet, (), heard_s=50.0, now_s=53.0 + LONGEST_GAP_S) == reach
        assert reach_of(kubelet, (), heard_s=50.0, now_s=53.1 + LONGEST_GAP_S) == "unclear"


def test_a_sidecar_that_was_not_asked_leaves_it_unclear() -> None:
    assert reach_of(tried(OPEN, GONE), [None], heard_s=50.0, now_s=60.0) == "unclear"


# Whose nodes


def reports(*last_s: float) -> AttemptReports:
    return AttemptReports(0, 0.0, 0.0, {index: WorkerReports(at_s) for index, at_s in enumerate(last_s)})


def heard(pods: tuple[Pod, ...], told: AttemptReports | None, *, since_s: float = 0.0) -> dict[str, float]:
    return {node.name: node.heard_s for node in worker_nodes(pods, told, receiving_since_s=since_s)}


def test_a_node_was_heard_when_one_of_its_workers_was() -> None:
    assert heard(PODS, reports(100.0, 110.0)) == {"a": 100.0, "b": 110.0}
    assert heard((*PODS, running(2, node="a")), reports(100.0, 110.0, 120.0)) == {"a": 120.0, "b": 110.0}


def test_nobody_is_missed_before_somebody_was_heard() -> None:
    assert heard(PODS, None) == {}


def test_a_worker_that_died_before_its_first_word_is_missed_once_another_was_heard() -> None:
    one = AttemptReports(0, 100.0, 100.0, {0: WorkerReports(900.0)})
    assert heard(PODS, one) == {"a": 900.0, "b": 100.0}


def test_silence_counts_only_while_the_operator_could_hear() -> None:
    assert heard(PODS, reports(100.0, 200.0), since_s=186.0) == {"a": 186.0, "b": 200.0}


@pytest.mark.parametrize(
    "pod",
    [
        worker(0, {"phase": "Pending"}, node="a"),
        worker(0, {"phase": "Succeeded"}, node="a"),
        running(0, node=""),
        deleted(running(0, node="a"), asked=0),
    ],
    ids=["pending", "ended", "nowhere", "deleted"],
)
def test_only_a_worker_that_should_be_running_is_missed(pod: Pod) -> None:
    assert heard((pod,), reports(0.0)) == {}


def test_an_old_pod_that_stays_beyond_its_grace_is_silent_from_then_on() -> None:
    late = deleted(running(0, node="a"), asked=0, grace_s=5)
    (found,) = overdue_nodes([late], at(5 + OVERDUE_S) + timedelta(seconds=7), NOW_S, TIMING)
    assert (found.name, found.pods) == ("a", (late,))
    assert NOW_S - found.heard_s == 7 + TIMING.report_timeout_s
    later = deleted(running(1, node="a"), asked=0, grace_s=6)
    (both,) = overdue_nodes([late, later], at(5 + OVERDUE_S) + timedelta(seconds=7), NOW_S, TIMING)
    assert (both.pods, both.heard_s) == ((late, later), found.heard_s + 1)


# When to look


def next_look(now_s: float, lease: LeaseHistory | None, *, heard_s: float = 100.0) -> float:
    return now_s + next_check_s(heard_s, lease, now_s=now_s, timing=TIMING)


def test_a_node_is_looked_at_when_it_is_in_doubt_and_when_each_time_is_over() -> None:
    doubt_s, renewed = 100.0 + 15 * DOUBT_FRACTION, LeaseHistory("x", 109.0, 109.0, True, (10.0,))
    assert next_look(100.0, renewed) == doubt_s
    assert next_look(doubt_s, renewed) == 115.0
    assert next_look(115.0, renewed) == 115.0 + CHECK_EVERY_S
    assert next_look(119.0, renewed) == 109.0 + RENEWED_S
    assert next_look(119.0, None) == 100.0 + 20
    assert next_look(120.0, renewed) == 120.0 + LATE_CHECK_EVERY_S
    assert next_look(128.5, renewed) == 109.0 + 20
    assert next_look(134.5, renewed) == 100.0 + 35
    assert next_look(900.0, renewed) == 900.0 + LATE_CHECK_EVERY_S
    assert next_look(112.0, None) == 112.0 + LATE_CHECK_EVERY_S
    assert next_look(900.0, LeaseHistory("y", 899.0, 899.0, True)) == 900.0 + CHECK_EVERY_S


def test_looks_leave_no_gap_between_them() -> None:
    assert max(LATE_CHECK_EVERY_S, CHECK_EVERY_S, RENEWED_S) < LONGEST_GAP_S
    assert TIMING.node_lease_timeout_s > LATE_INTERVALS * 10.4, "a kubelet renews every 10 s, and 4 % later at most"
    assert TIMING.report_timeout_s * DOUBT_FRACTION > 10.0, "a sidecar with nothing new to tell reports so often"
