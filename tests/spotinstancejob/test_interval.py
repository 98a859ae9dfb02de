"""How often replicas are checkpointed: the written interval, the cheapest one, and what both save on real logs."""

import math
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.spotinstancejob.interval import (
    LONGEST_S,
    PRIOR_LIFETIME_S,
    SHORTEST_S,
    SMALLEST_CHANGE,
    UNKNOWN_COST_S,
    checkpoint_interval_s,
    is_saved_on_notice,
    mean_lifetime_s,
    next_checkpoint_time,
    offset_s,
)
from tests.spotinstancejob.goodput import Goodput, Policy, replay
from tests.spotinstancejob.traces import LOGS, events
from tests.trainingjobs import at

HOUR = 3600.0
COSTS = st.lists(st.floats(0, 1e5), max_size=8)
LIFETIMES = st.floats(1, 1e7)


def auto(
    *costs_s: float, lifetime_s: float = 4 * HOUR, saves_on_notice: bool = False, current_s: int | None = None
) -> int:
    return checkpoint_interval_s(
        "auto", costs_s=costs_s, lifetime_s=lifetime_s, saves_on_notice=saves_on_notice, current_s=current_s
    )


@pytest.mark.parametrize(
    ("written", "expected"), [("30m", 1800), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), ("10s", 10), ("24h", 86400)]
)
def test_a_written_interval_is_taken_as_it_is_whatever_checkpoints_cost(written: str, expected: int) -> None:
    for current_s in (None, 60, 5399):
        assert checkpoint_interval_s(written, costs_s=[500], lifetime_s=1, current_s=current_s) == expected


@pytest.mark.parametrize(
    ("cost_s", "lifetime_s", "expected"),
    [
        (5, 4 * HOUR, 379),
        (30, 4 * HOUR, 930),
        (30, 1 * HOUR, 465),
        (60, 24 * HOUR, 3220),
        (0.001, 4 * HOUR, 60),
        (0, 4 * HOUR, 60),
        (3600, 24 * HOUR, 21600),
        (1e9, 1e9, 21600),
    ],
)
def test_auto_balances_the_cost_of_checkpoints_with_the_work_that_a_loss_costs(
    cost_s: float, lifetime_s: float, expected: int
) -> None:
    assert auto(cost_s, lifetime_s=lifetime_s) == expected


def test_auto_begins_with_a_guess_of_the_cost() -> None:
    assert auto() == auto(UNKNOWN_COST_S)


def test_the_last_five_checkpoints_tell_the_cost() -> None:
    assert auto(9000, 9000, 10, 20, 30, 40, 50) == auto(30)
    assert auto(10, 50) == auto(30)


def test_an_interval_is_longer_where_the_notice_is_long_enough_to_save_in() -> None:
    assert auto(30, saves_on_notice=True) == pytest.approx(2 * auto(30), abs=1)
    assert auto(1000, lifetime_s=1e9, saves_on_notice=True) == 6 * HOUR


@pytest.mark.parametrize(
    ("current_s", "expected"),
    [
        (930, 930),
        (775, 775),  # 930 is 20 % more
        (774, 930),
        (1161, 1161),
        (1162, 930),
        (59, 930),
        (30, 930),
        (100_000, 930),
        (None, 930),
    ],
)
def test_auto_is_changed_by_more_than_a_fifth_or_not_at_all(current_s: int | None, expected: int) -> None:
    assert auto(30, current_s=current_s) == expected


def test_an_interval_out_of_bounds_that_was_written_before_is_not_kept() -> None:
    assert auto(0.1, lifetime_s=1, current_s=50) == SHORTEST_S
    assert auto(1e9, current_s=24_000) == LONGEST_S


@given(COSTS, LIFETIMES, st.booleans(), st.none() | st.integers(0, 10**6))
def test_auto_stays_between_a_minute_and_six_hours(
    costs_s: list[float], lifetime_s: float, notice: bool, current_s: int | None
) -> None:
    found = auto(*costs_s, lifetime_s=lifetime_s, saves_on_notice=notice, current_s=current_s)
    assert SHORTEST_S <= found <= LONGEST_S


@given(COSTS, LIFETIMES)
def test_auto_does_not_change_what_it_has_chosen(costs_s: list[float], lifetime_s: float) -> None:
    chosen = auto(*costs_s, lifetime_s=lifetime_s)
    assert auto(*costs_s, lifetime_s=lifetime_s, current_s=chosen) == chosen


@given(COSTS, LIFETIMES, st.integers(SHORTEST_S, LONGEST_S))
def test_a_change_is_larger_than_a_fifth(costs_s: list[float], lifetime_s: float, current_s: int) -> None:
    found = auto(*costs_s, lifetime_s=lifetime_s, current_s=current_s)
    assert found == current_s or abs(found - current_s) > SMALLEST_CHANGE * current_s - 1


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=5), LIFETIMES, st.floats(1, 10))
def test_dearer_checkpoints_and_longer_lives_never_shorten_the_interval(
    costs_s: list[float], lifetime_s: float, factor: float
) -> None:
    before = auto(*costs_s, lifetime_s=lifetime_s)
    assert auto(*(cost * factor for cost in costs_s), lifetime_s=lifetime_s) >= before
    assert auto(*costs_s, lifetime_s=lifetime_s * factor) >= before
    assert auto(*costs_s, lifetime_s=lifetime_s, saves_on_notice=True) >= before


# The lifetime.


@pytest.mark.parametrize(
    ("taken_back", "seconds", "expected"),
    [(0, 0, 4 * HOUR), (1, 2 * HOUR, 3 * HOUR), (3, 3 * HOUR, 1.75 * HOUR), (99, 99 * HOUR, 1.03 * HOUR)],
)
def test_the_lifetime_is_that_of_the_account_the_more_machines_it_has(
    taken_back: int, seconds: float, expected: float
) -> None:
    assert mean_lifetime_s(taken_back, seconds) == pytest.approx(expected)


@given(st.integers(0, 10**6), st.floats(0, 1e6))
def test_the_lifetime_lies_between_the_guess_and_the_mean_of_the_account(taken_back: int, mean_s: float) -> None:
    found = mean_lifetime_s(taken_back, taken_back * mean_s)
    low, high = sorted((PRIOR_LIFETIME_S, mean_s))
    assert low * 0.999 <= found <= high * 1.001 or taken_back == 0


# The save on notice.


@pytest.mark.parametrize(
    ("last_checkpoint_s", "notice_s", "expected"),
    [(None, 120, False), (59, 120, True), (60, 120, False), (14, 30, True), (15, 30, False), (0, 0, False)],
)
def test_a_doomed_replica_is_saved_where_half_of_the_notice_is_enough(
    last_checkpoint_s: float | None, notice_s: float, expected: bool
) -> None:
    assert is_saved_on_notice(last_checkpoint_s, notice_s) is expected


# When each replica is saved.


@given(st.integers(1, 32), st.integers(60, 21600))
def test_replicas_are_saved_at_equal_distances(replicas: int, interval_s: int) -> None:
    offsets = [offset_s(replica, replicas, interval_s) for replica in range(replicas)]
    ring = [*offsets, interval_s]
    assert offsets[0] == 0
    assert all(math.isclose(after - before, interval_s / replicas) for before, after in pairwise(ring))


def test_a_replica_beyond_the_wished_number_has_an_offset_too() -> None:
    assert offset_s(3, 2, 600) == 300
    assert offset_s(0, 0, 600) == 0


@pytest.mark.parametrize(
    ("after_s", "offset", "expected_s"),
    [
        (0, 0, 600),
        (0, 300, 300),  # half an interval after its start
        (301, 300, 900),
        (600, 0, 1200),
        (610, 0, 1200),  # a checkpoint that came late moves no later one
        (901, 0, 1800),  # and does not come twice in a row
        (-500, 300, 300),
    ],
)
def test_a_replica_keeps_its_turn_whenever_it_started(after_s: float, offset: float, expected_s: float) -> None:
    found = next_checkpoint_time(at(0), at(after_s), offset=offset, interval_s=600)
    assert found == at(expected_s)


@given(st.integers(60, 21600), st.integers(0, 31), st.integers(1, 32), st.floats(-1e6, 1e6))
def test_the_next_checkpoint_is_at_least_half_an_interval_and_at_most_one_and_a_half_away(
    interval_s: int, replica: int, replicas: int, after_s: float
) -> None:
    offset = offset_s(replica, replicas, interval_s)
    after = at(0) + timedelta(seconds=after_s)
    found = next_checkpoint_time(at(0), after, offset=offset, interval_s=interval_s)
    assert 0.499 * interval_s <= (found - after).total_seconds() <= 1.501 * interval_s


# What it saves on real logs.

LOG_COSTS = [5.0, 15.0, 30.0, 60.0]


def goodput(log: str, cost_s: float, written: str = "auto", *, longer: bool = False, saves: bool = False) -> Goodput:
    return replay(events(log), Policy(cost_s=cost_s, written=written, longer=longer, saves_on_notice=saves))


@pytest.mark.parametrize("cost_s", LOG_COSTS)
@pytest.mark.parametrize("log", LOGS)
def test_auto_is_as_good_as_any_usual_interval_on_a_real_log(log: str, cost_s: float) -> None:
    found = goodput(log, cost_s)
    for written in ("10m", "30m", "60m"):
        assert found.share >= goodput(log, cost_s, written).share - 0.01, f"{written} is better than {found}"


@pytest.mark.parametrize("cost_s", LOG_COSTS)
@pytest.mark.parametrize("log", LOGS)
def test_save_on_notice_pays_and_so_does_the_longer_interval_with_it(log: str, cost_s: float) -> None:
    longer = goodput(log, cost_s, longer=True, saves=True)
    assert longer.interval_s > goodput(log, cost_s).interval_s
    assert longer.share > goodput(log, cost_s, longer=True).share, "the save on notice brings nothing"
    assert longer.share > goodput(log, cost_s, saves=True).share, "the shorter interval is better"
    assert longer.share > goodput(log, cost_s).share


@pytest.mark.parametrize("log", LOGS)
def test_a_replay_tells_good_intervals_from_bad_ones(log: str) -> None:
    assert goodput(log, 30, "6h").share < goodput(log, 30).share - 0.2
    assert goodput(log, 30, "60s").share < goodput(log, 30).share - 0.2
    assert goodput(log, 0, "1s").share > 0.99


@pytest.mark.parametrize("log", LOGS)
def test_a_log_has_machines_that_came_and_went_in_order(log: str) -> None:
    found = events(log)
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    assert sum(each.kind == "remove" for each in found) > 50
