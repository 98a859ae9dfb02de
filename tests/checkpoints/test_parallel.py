"""A few things at once, and what happens when one of them fails."""

import threading

import pytest

from holdfast.checkpoints.unpack import map_in_threads


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order(workers: int) -> None:
    assert map_in_threads(lambda number: number * 2, range(50), workers) == [number * 2 for number in range(50)]
    assert map_in_threads(str, [], workers) == []


def test_as_many_as_allowed_run_at_once() -> None:
    barrier = threading.Barrier(3)
    assert sorted(map_in_threads(lambda _: barrier.wait(60), range(3), 3)) == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_failure_nothing_more_is_begun(workers: int) -> None:
    begun: list[int] = []
    never = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise OSError("no")
        never.wait(0.05)

    with pytest.raises(OSError, match="no"):
        map_in_threads(work, range(300), workers)
    assert len(begun) < 300


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_is_raised_in_a_thread_is_raised_here(workers: int, failure: BaseException) -> None:
    def work(number: int) -> None:
        if number == 7:
            raise failure

    with pytest.raises(type(failure)) as raised:
        map_in_threads(work, range(20), workers)
    assert raised.value is failure
