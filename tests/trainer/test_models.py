"""Gradients are what finite differences say, for each model, whole and in parts."""

import numpy as np
import pytest

from holdfast.trainer.model import Floats, Labels, Network, build, exact, half, pool
from holdfast.trainer.settings import MODELS, InvalidTrainerSetting, settings

SHAPE, CLASSES = (6, 5), 4


def network(model: str, *, mixed: bool = False) -> Network:
    environ = {"MODEL": model, "PARAM_HIDDEN": "7", "PARAM_CHANNELS": "3", "MIXED_PRECISION": str(mixed).lower()}
    return build(settings(environ), SHAPE, CLASSES)


def batch(count: int, seed: int = 3) -> tuple[Floats, Labels]:
    random = np.random.default_rng(seed)
    return random.random((count, *SHAPE, 1)), random.integers(CLASSES, size=count)


def parameters(model: Network) -> Floats:
    """In double precision, biases too away from zero."""
    return model.initial(np.random.default_rng(1)).astype(np.float64) + 0.01


@pytest.mark.parametrize("model", MODELS)
def test_the_gradient_is_that_of_finite_differences(model: str) -> None:
    chosen = network(model)
    at, (x, labels), tiny = parameters(chosen), batch(5), 1e-6
    _, gradient = chosen.loss_and_gradient(at, x, labels)
    assert gradient.shape == (chosen.size,)
    for index in range(chosen.size):
        there, back = at.copy(), at.copy()
        there[index] += tiny
        back[index] -= tiny
        slope = (chosen.loss_and_hits(there, x, labels)[0] - chosen.loss_and_hits(back, x, labels)[0]) / (2 * tiny)
        assert gradient[index] == pytest.approx(slope, rel=1e-5, abs=1e-7), f"parameter {index}"


@pytest.mark.parametrize("model", MODELS)
def test_parts_of_a_batch_add_up_to_the_whole(model: str) -> None:
    chosen = network(model)
    at, (x, labels) = parameters(chosen), batch(9)
    loss, gradient = chosen.loss_and_gradient(at, x, labels)
    parts = [chosen.loss_and_gradient(at, x[part], labels[part]) for part in (slice(0, 4), slice(4, 4), slice(4, 9))]
    assert sum(part[0] for part in parts) == pytest.approx(loss)
    assert np.allclose(sum(part[1] for part in parts), gradient)


@pytest.mark.parametrize("model", MODELS)
def test_no_samples_have_no_loss_and_no_gradient(model: str) -> None:
    chosen = network(model)
    loss, gradient = chosen.loss_and_gradient(parameters(chosen), *batch(0))
    assert loss == 0
    assert not gradient.any()
    assert gradient.shape == (chosen.size,)


@pytest.mark.parametrize("model", MODELS)
def test_a_training_stays_in_single_precision(model: str) -> None:
    chosen = network(model)
    x, labels = batch(3)
    _, gradient = chosen.loss_and_gradient(chosen.initial(np.random.default_rng(0)), x.astype(np.float32), labels)
    assert gradient.dtype == np.float32


@pytest.mark.parametrize("model", MODELS)
def test_mixed_precision_is_near_the_exact_gradient_and_not_it(model: str) -> None:
    rough, fine = network(model, mixed=True), network(model)
    at = fine.initial(np.random.default_rng(0))
    x, labels = batch(8)
    one, other = (each.loss_and_gradient(at, x.astype(np.float32), labels)[1] for each in (rough, fine))
    assert not np.array_equal(one, other)
    assert np.allclose(one, other, atol=0.05)
    assert one.dtype == np.float32


def test_a_half_precision_product_adds_up_in_single_precision() -> None:
    ones = np.ones((1, 4096), np.float32)
    small = np.full((4096, 1), 1 + 2**-11, np.float32)
    assert half(ones, small)[0, 0] == 4096, "the factor was rounded to 16 bits, the sum was not"
    assert exact(ones, small)[0, 0] == 4098


def test_scores_of_any_size_have_a_finite_loss() -> None:
    chosen = network("linear")
    loss, gradient = chosen.loss_and_gradient(parameters(chosen) * 1e6, *batch(3))
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_a_last_odd_column_is_left_out_by_the_pool_and_equals_share_a_gradient() -> None:
    forward, _ = pool()
    x = np.array([[[4.0], [4.0], [9.0]], [[1.0], [4.0], [9.0]]])[np.newaxis]
    y, pullback = forward([], x)
    assert y.ravel().tolist() == [4.0]
    dx, _ = pullback(np.full_like(y, 3.0))
    assert dx[0, :, :, 0].tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]


def test_named_weights_are_views_of_the_vector_in_its_order() -> None:
    chosen = network("mlp")
    named = chosen.named(np.arange(chosen.size, dtype=np.float32))
    assert {name: array.shape for name, array in named.items()} == {
        "hidden.weight": (30, 7),
        "hidden.bias": (7,),
        "out.weight": (7, 4),
        "out.bias": (4,),
    }
    assert named["out.bias"].tolist() == [chosen.size - 4, chosen.size - 3, chosen.size - 2, chosen.size - 1]


def test_the_first_weights_follow_from_the_seed_and_biases_are_zero() -> None:
    chosen = network("cnn")
    one, same, other = (chosen.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert not chosen.named(one)["first.bias"].any()


def test_images_too_small_for_the_cnn_are_refused() -> None:
    with pytest.raises(InvalidTrainerSetting, match="at least 4 by 4 pixels; those of digits are 3 by 9"):
        build(settings({"MODEL": "cnn"}), (3, 9), 10)
