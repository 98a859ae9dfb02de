"""Each layer does what its definition, written out in loops, says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.model import Floats, Layer, convolution, dense, exact, flatten, pool, relu

SIZES = st.tuples(st.integers(0, 3), st.integers(2, 6), st.integers(2, 6), st.integers(1, 3))


def numbers(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape)


def weights(layer: Layer) -> list[Floats]:
    return [numbers(*shape, seed=index) for index, shape in enumerate(layer.shapes.values())]


def convolved(x: Floats, weight: Floats, bias: Floats) -> Floats:
    """The definition: every output is the bias and the products with its 3 by 3 neighbours, none beyond the border."""
    count, height, width, inputs = x.shape
    kernel = weight.reshape(inputs, 3, 3, -1)
    y = np.zeros((count, height, width, kernel.shape[-1])) + bias
    for row in range(height):
        for column in range(width):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    if 0 <= row + down < height and 0 <= column + right < width:
                        y[:, row, column] += x[:, row + down, column + right] @ kernel[:, down + 1, right + 1]
    return y


@settings(deadline=None)
@given(SIZES, st.integers(1, 3))
def test_a_convolution_is_its_definition(size: tuple[int, int, int, int], outputs: int) -> None:
    layer = convolution("c", size[3], outputs, exact)
    weight, bias = weights(layer)
    x = numbers(*size, seed=7)
    y, _ = layer.forward([weight, bias], x)
    assert y.shape == (*size[:3], outputs)
    assert np.allclose(y, convolved(x, weight, bias))


@settings(deadline=None)
@given(SIZES)
def test_a_pool_keeps_the_largest_of_each_square(size: tuple[int, int, int, int]) -> None:
    x = numbers(*size)
    y, pullback = pool().forward([], x)
    rows, columns = size[1] // 2, size[2] // 2
    assert y.shape == (size[0], rows, columns, size[3])
    for row in range(rows):
        for column in range(columns):
            square = x[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert np.array_equal(y[:, row, column], square.max(axis=(1, 2)))
    dx, _ = pullback(np.ones_like(y))
    assert dx.shape == x.shape
    assert dx.sum() == pytest.approx(y.size), "each square hands its gradient to one place"


def test_a_dense_layer_is_a_product_and_a_sum() -> None:
    layer = dense("d", 4, 3, exact)
    weight, bias = weights(layer)
    x = numbers(5, 4, seed=7)
    y, _ = layer.forward([weight, bias], x)
    assert np.allclose(y, [[sum(row[i] * weight[i, j] for i in range(4)) + bias[j] for j in range(3)] for row in x])


def test_a_rectifier_passes_what_is_above_zero_both_ways() -> None:
    y, pullback = relu().forward([], np.array([[-1.0, 0.0, 2.0]]))
    assert y.tolist() == [[0.0, 0.0, 2.0]]
    assert pullback(np.array([[5.0, 5.0, 5.0]]))[0].tolist() == [[0.0, 0.0, 5.0]]


@settings(deadline=None)
@given(SIZES)
def test_flattening_is_undone_on_the_way_back(size: tuple[int, int, int, int]) -> None:
    x = numbers(*size)
    y, pullback = flatten().forward([], x)
    assert y.shape == (size[0], size[1] * size[2] * size[3])
    assert np.array_equal(pullback(y)[0], x)


@pytest.mark.parametrize("layer", [flatten(), relu(), pool()])
def test_a_layer_without_weights_has_no_gradient_of_any(layer: Layer) -> None:
    assert layer.shapes == {}
    y, pullback = layer.forward([], numbers(2, 4, 4, 1))
    assert pullback(y)[1] == []


@pytest.mark.parametrize("layer", [dense("one", 3, 2, exact), convolution("two", 3, 2, exact)])
def test_gradients_have_the_shapes_of_their_weights(layer: Layer) -> None:
    given_weights = weights(layer)
    x = numbers(2, 3) if "one.bias" in layer.shapes else numbers(2, 4, 4, 3)
    y, pullback = layer.forward(given_weights, x)
    dx, gradients = pullback(np.ones_like(y))
    assert dx.shape == x.shape
    assert [gradient.shape for gradient in gradients] == list(layer.shapes.values())
