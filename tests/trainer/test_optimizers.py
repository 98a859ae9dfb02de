"""First steps that can be worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.model import EPSILON, OPTIMIZERS, Floats, Moments, Update, rate

START = np.array([1.0, -2.0, 0.5], np.float32)
GRADIENT = np.array([0.5, -0.25, 4.0], np.float32)


def update(number: int = 1, *, rate: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.5) -> Update:
    return Update(number=number, rate=rate, momentum=momentum, weight_decay=weight_decay)


def steps(name: str, count: int, gradient: Floats = GRADIENT) -> tuple[Floats, Moments]:
    optimizer = OPTIMIZERS[name]
    parameters: Floats = START
    moments = optimizer.initial(len(START))
    for number in range(1, count + 1):
        parameters, moments = optimizer.step(parameters, gradient, moments, update(number))
    return parameters, moments


def test_sgd_goes_down_the_gradient_and_gathers_momentum() -> None:
    assert np.allclose(steps("sgd", 1)[0], START - 0.1 * GRADIENT)
    assert np.allclose(steps("sgd", 2)[0], START - 0.1 * GRADIENT - 0.1 * 1.9 * GRADIENT)


def test_sgd_without_momentum_forgets() -> None:
    optimizer = OPTIMIZERS["sgd"]
    parameters, moments = optimizer.step(START, GRADIENT, optimizer.initial(3), update(momentum=0))
    parameters, _ = optimizer.step(parameters, GRADIENT, moments, update(2, momentum=0))
    assert np.allclose(parameters, START - 0.2 * GRADIENT)


def test_adam_s_first_steps_are_the_rate_in_the_gradient_s_direction() -> None:
    assert np.allclose(steps("adam", 1)[0], START - 0.1 * np.sign(GRADIENT), atol=1e-6)
    assert np.allclose(steps("adam", 5)[0], START - 0.5 * np.sign(GRADIENT), atol=1e-5), "a constant gradient"


def test_adam_keeps_the_running_mean_and_square() -> None:
    _, moments = steps("adam", 1)
    assert np.allclose(moments["mean"], 0.1 * GRADIENT)
    assert np.allclose(moments["square"], 0.001 * GRADIENT**2)


def test_adamw_shrinks_the_weights_besides() -> None:
    assert np.allclose(steps("adamw", 1)[0], START * (1 - 0.1 * 0.5) - 0.1 * np.sign(GRADIENT), atol=1e-6)
    still, _ = steps("adamw", 1, np.zeros_like(GRADIENT))
    assert np.allclose(still, START * 0.95), "without a gradient only the decay is left"


def test_rmsprop_divides_by_the_running_root_mean_square() -> None:
    expected = START - 0.1 * GRADIENT / (np.sqrt(0.01) * np.abs(GRADIENT) + EPSILON)
    assert np.allclose(steps("rmsprop", 1)[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_finds_the_bottom_of_a_bowl(name: str) -> None:
    optimizer, parameters = OPTIMIZERS[name], START
    moments = optimizer.initial(len(START))
    for number in range(1, 500):
        step = update(number, rate=0.02, weight_decay=0.0)
        parameters, moments = optimizer.step(parameters, parameters.copy(), moments, step)
    assert np.abs(parameters).max() < 0.05


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_stays_in_single_precision_and_changes_nothing_that_it_was_given(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    start, moments = START.copy(), optimizer.initial(3)
    parameters, after = optimizer.step(start, GRADIENT, moments, update())
    assert parameters.dtype == np.float32
    assert {array.dtype for array in after.values()} == {np.dtype(np.float32)}
    assert np.array_equal(start, START)
    assert not any(array.any() for array in moments.values())
    assert set(after) == set(moments) == set(optimizer.moments)


def test_the_rate_grows_over_the_warm_up_and_stays() -> None:
    assert [rate(0.8, 4, number) for number in range(1, 7)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert rate(0.8, 0, 1) == 0.8


@settings(deadline=None)
@given(st.floats(1e-6, 10), st.integers(0, 1000), st.integers(1, 2000))
def test_the_rate_is_above_nothing_and_never_above_its_target(target: float, warmup: int, number: int) -> None:
    assert 0 < rate(target, warmup, number) <= target
