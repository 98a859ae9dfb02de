"""Workers in threads of this process: what each of them holds after every step."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from holdfast.trainer.allreduce import join
from holdfast.trainer.settings import MODELS, Diverged, RankInfo, TrainerError
from holdfast.trainer.training import State, StopOrSave, Task, evaluate, fresh, train_epoch
from tests.trainer.tasks import same, task, trained
from tests.trainer.workers import PORT, WAIT_S, loopback

T = TypeVar("T")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def together(pool: ThreadPoolExecutor, size: int, work: Callable[[Task], T], **environ: str) -> list[T]:
    """What each of the workers comes to."""
    host = loopback()

    def worker(rank: int) -> T:
        training = task(**environ)
        where = RankInfo(rank=rank, size=size, host=host, port=PORT)
        group = join(where, training.settings.digest, WAIT_S)
        try:
            return work(replace(training, group=group))
        except TrainerError as error:
            group.fail(error)
            raise
        finally:
            group.close()

    futures = [pool.submit(worker, rank) for rank in range(size)]
    return [future.result(WAIT_S) for future in futures]


@pytest.mark.parametrize("model", MODELS)
def test_all_workers_hold_the_same_bits(pool: ThreadPoolExecutor, model: str) -> None:
    states = together(pool, 3, lambda training: trained(training, fresh(training), 2), MODEL=model)
    assert same(states[0], states[1])
    assert same(states[0], states[2])


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("environ", [{}, {"GRADIENT_ACCUMULATION_STEPS": "3"}, {"BATCH_SIZE": "3"}])
def test_their_number_changes_nothing_but_the_order_of_sums(
    pool: ThreadPoolExecutor, size: int, environ: dict[str, str]
) -> None:
    alone = task(**environ)
    expected = trained(alone, fresh(alone), 2)
    state = together(pool, size, lambda training: trained(training, fresh(training), 2), **environ)[0]
    assert state.at.updates == expected.at.updates
    assert np.allclose(state.parameters, expected.parameters, atol=1e-4)
    assert state.at.samples == expected.at.samples


@pytest.mark.parametrize("size", [2, 4])
def test_they_evaluate_every_sample_once(pool: ThreadPoolExecutor, size: int) -> None:
    alone = task()
    expected = evaluate(alone, fresh(alone))
    for score in together(pool, size, lambda training: evaluate(training, fresh(training))):
        assert score.accuracy == expected.accuracy
        assert score.loss == pytest.approx(expected.loss, rel=1e-5)


@pytest.mark.parametrize("wisher", [0, 1, 2])
@pytest.mark.parametrize("wish", [StopOrSave(stop=True), StopOrSave(save=True)])
def test_a_request_to_one_worker_is_one_to_all_after_the_same_step(
    pool: ThreadPoolExecutor, wisher: int, wish: StopOrSave
) -> None:
    def work(training: Task) -> tuple[State, StopOrSave]:
        wishes = iter([StopOrSave(), wish if training.group.rank == wisher else StopOrSave()])
        return train_epoch(training, fresh(training), lambda: next(wishes))

    found = together(pool, 3, work)
    assert [(state.at.updates, wished) for state, wished in found] == [(2, wish)] * 3
    assert same(found[0][0], found[2][0])


def test_all_find_that_the_training_has_diverged(pool: ThreadPoolExecutor) -> None:
    both = threading.Barrier(2, timeout=WAIT_S)

    def work(training: Task) -> str:
        with np.errstate(all="ignore"), pytest.raises(Diverged) as diverged:
            trained(training, fresh(training), 5)
        both.wait()
        return str(diverged.value)

    one, other = together(pool, 2, work, LEARNING_RATE="1e30", OPTIMIZER="sgd")
    assert one == other
