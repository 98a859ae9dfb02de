"""Steps, epochs and evaluation, in one process."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.trainer.model import OPTIMIZERS
from holdfast.trainer.settings import MODELS, Diverged
from holdfast.trainer.training import StopOrSave, evaluate, fresh, train_epoch
from tests.trainer.tasks import same, task, trained


def test_the_same_seed_gives_the_same_training_to_the_last_bit() -> None:
    one, other = task(PARAM_SEED="1"), task(PARAM_SEED="1")
    assert same(trained(one, fresh(one), 2), trained(other, fresh(other), 2))
    different = task(PARAM_SEED="2")
    assert not same(trained(one, fresh(one), 2), trained(different, fresh(different), 2))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_model_learns_with_every_optimizer(model: str, optimizer: str) -> None:
    training = task(MODEL=model, OPTIMIZER=optimizer, PARAM_SAMPLES="500", PARAM_HIDDEN="32")
    start = fresh(training)
    before, after = evaluate(training, start), evaluate(training, trained(training, start, 8))
    assert after.loss < before.loss
    assert after.accuracy > 0.25 > before.accuracy


def test_mixed_precision_learns_too() -> None:
    training = task(MIXED_PRECISION="true", PARAM_SAMPLES="500")
    assert evaluate(training, trained(training, fresh(training), 8)).accuracy > 0.6


def test_an_epoch_takes_every_sample_and_counts_its_steps() -> None:
    training = task()
    shown: list[int] = []
    state, wished = train_epoch(training, fresh(training), StopOrSave, lambda at: shown.append(at.samples))
    assert (state.at.samples, state.at.updates, wished) == (80, 5, StopOrSave())
    assert shown == [16, 32, 48, 64], "each but the last, with which the epoch ends"
    assert state.at.train_loss > 0


def test_accumulated_batches_make_the_step_of_one_large_batch() -> None:
    small, large = task(BATCH_SIZE="8", GRADIENT_ACCUMULATION_STEPS="4"), task(BATCH_SIZE="32")
    one, other = trained(small, fresh(small), 2), trained(large, fresh(large), 2)
    assert one.at.updates == other.at.updates == 6
    assert np.allclose(one.parameters, other.parameters, atol=1e-5)


def test_accumulation_makes_fewer_steps() -> None:
    training = task(BATCH_SIZE="8", GRADIENT_ACCUMULATION_STEPS="4")
    assert trained(training, fresh(training), 1).at.updates == 3


def test_a_batch_larger_than_the_data_is_the_whole_of_it() -> None:
    training = task(BATCH_SIZE="1000000")
    assert trained(training, fresh(training), 3).at.updates == 3


def test_the_warm_up_makes_the_first_steps_small() -> None:
    warm, cold = task(WARMUP_STEPS="1000", OPTIMIZER="sgd"), task(OPTIMIZER="sgd")
    start = fresh(warm)
    moved = [np.abs(trained(each, start, 1).parameters - start.parameters).max() for each in (warm, cold)]
    assert moved[0] < moved[1] / 100


@pytest.mark.parametrize("wish", [StopOrSave(stop=True), StopOrSave(save=True), StopOrSave(stop=True, save=True)])
def test_a_request_interrupts_the_epoch_after_the_step_under_way(wish: StopOrSave) -> None:
    training = task()
    state, wished = train_epoch(training, fresh(training), lambda: wish)
    assert (state.at.samples, state.at.updates, wished) == (16, 1, wish)


def test_an_epoch_goes_on_where_it_was_stopped_to_the_last_bit() -> None:
    training = task()
    wishes = iter([StopOrSave(), StopOrSave(), StopOrSave(stop=True)])
    middle, wished = train_epoch(training, fresh(training), lambda: next(wishes))
    assert (middle.at.updates, wished) == (3, StopOrSave(stop=True))
    assert same(trained(training, middle, 2), trained(training, fresh(training), 2))


def test_another_batch_size_after_a_stop_still_takes_every_sample_once() -> None:
    training = task()
    middle, _ = train_epoch(training, fresh(training), lambda: StopOrSave(stop=True))
    wider = replace(training, settings=replace(training.settings, batch_size=30))
    state, _ = train_epoch(wider, middle, StopOrSave)
    assert (state.at.samples, state.at.updates) == (80, 4)


def test_a_loss_that_is_no_number_ends_the_training_with_what_to_change() -> None:
    training = task(LEARNING_RATE="1e30", OPTIMIZER="sgd")
    with (
        np.errstate(all="ignore"),
        pytest.raises(Diverged, match=r"the loss is nan after .* LEARNING_RATE below 1e\+30"),
    ):
        trained(training, fresh(training), 5)


def test_a_model_that_broke_in_the_last_step_is_found_by_its_evaluation() -> None:
    training = task()
    state = fresh(training)
    broken = replace(state, parameters=np.full_like(state.parameters, np.nan))
    with pytest.raises(Diverged):
        evaluate(training, broken)
