"""Delays grow, spread, and never leave their bounds."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.runtime.http import RateLimiter
from holdfast.runtime.queue import backoff_s


@given(failures=st.integers(1, 10**9), seed=st.integers())
def test_a_delay_is_between_half_and_all_of_its_step_and_below_the_cap(failures: int, seed: int) -> None:
    step = min(300.0, 0.1 * 2 ** min(failures - 1, 40))
    assert step / 2 <= backoff_s(failures, base_s=0.1, cap_s=300.0, random=Random(seed)) <= step


def test_two_clients_do_not_stay_in_step() -> None:
    delays = {backoff_s(3, base_s=1.0, cap_s=30.0, random=Random(seed)) for seed in range(20)}
    assert len(delays) == 20


def test_a_burst_is_let_through_and_then_a_trickle() -> None:
    buckets: RateLimiter[str] = RateLimiter(burst=3, refill_s=10.0, memory=10)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert not buckets.take("a", 9.0)
    assert buckets.take("a", 10.5)
    assert not buckets.take("a", 11.0)


def test_each_key_has_its_own_bucket() -> None:
    buckets: RateLimiter[str] = RateLimiter(burst=1, refill_s=10.0, memory=10)
    assert buckets.take("a", 0.0)
    assert buckets.take("b", 0.0)
    assert not buckets.take("a", 0.0)


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    buckets: RateLimiter[str] = RateLimiter(burst=2, refill_s=1.0, memory=10)
    assert buckets.take("a", 0.0)
    assert [buckets.take("a", 1000.0) for _ in range(3)] == [True, True, False]


def test_the_key_not_seen_for_longest_is_forgotten() -> None:
    buckets: RateLimiter[str] = RateLimiter(burst=1, refill_s=1000.0, memory=2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 0.0)
    assert not buckets.take("a", 0.0)
    assert buckets.take("b", 0.0)


@given(waits=st.lists(st.floats(0, 100), max_size=60))
def test_no_run_of_takes_gets_more_than_burst_and_trickle(waits: list[float]) -> None:
    buckets: RateLimiter[str] = RateLimiter(burst=5, refill_s=7.0, memory=10)
    now_s, taken = 0.0, 0
    for wait_s in waits:
        now_s += wait_s
        taken += buckets.take("a", now_s)
    assert taken <= 5 + now_s / 7.0 + 1e-6


@pytest.mark.parametrize("failures", [0, 1])
def test_the_first_delay_is_the_base(failures: int) -> None:
    assert 0.4 <= backoff_s(failures, base_s=0.8, cap_s=30.0, random=Random(1)) <= 0.8
