"""The layers of a network: each maps a batch forward and hands back how to pull a gradient through it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from holdfast.trainer.arrays import Floats

Weights = list[Floats]
# The gradient of what came out → the gradients of what went in and of the weights.
Pullback = Callable[[Floats], tuple[Floats, Weights]]
Forward = Callable[[Weights, Floats], tuple[Floats, Pullback]]
Product = Callable[[Floats, Floats], Floats]


class Layer(NamedTuple):
    forward: Forward
    shapes: dict[str, tuple[int, ...]] = {}


def exact(left: Floats, right: Floats) -> Floats:
    return left @ right


def half(left: Floats, right: Floats) -> Floats:
    """A product as tensor cores do it: factors of 16 bits, a sum of 32."""
    return left.astype(np.float16).astype(np.float32) @ right.astype(np.float16).astype(np.float32)


def flatten() -> Layer:
    def forward(_: Weights, x: Floats) -> tuple[Floats, Pullback]:
        return x.reshape(len(x), int(np.prod(x.shape[1:]))), lambda dy: (dy.reshape(x.shape), [])

    return Layer(forward)


def relu() -> Layer:
    def forward(_: Weights, x: Floats) -> tuple[Floats, Pullback]:
        return np.maximum(x, 0), lambda dy: (dy * (x > 0), [])

    return Layer(forward)


def dense(name: str, inputs: int, outputs: int, product: Product) -> Layer:
    def forward(weights: Weights, x: Floats) -> tuple[Floats, Pullback]:
        weight, bias = weights

        def pullback(dy: Floats) -> tuple[Floats, Weights]:
            return product(dy, weight.T), [product(x.T, dy), dy.sum(axis=0)]

        return product(x, weight) + bias, pullback

    return Layer(forward, {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)})


def convolution(name: str, inputs: int, outputs: int, product: Product) -> Layer:
    """3 by 3, the borders filled with zeros so that the size stays."""

    def forward(weights: Weights, x: Floats) -> tuple[Floats, Pullback]:
        weight, bias = weights
        count, height, width, _ = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = sliding_window_view(padded, (3, 3), axis=(1, 2)).reshape(count * height * width, inputs * 9)

        def pullback(dy: Floats) -> tuple[Floats, Weights]:
            flat = dy.reshape(-1, outputs)
            spread = product(flat, weight.T).reshape(count, height, width, inputs, 3, 3)
            dx = np.zeros_like(padded)
            for row in range(3):
                for column in range(3):
                    dx[:, row : row + height, column : column + width] += spread[..., row, column]
            return dx[:, 1:-1, 1:-1], [product(windows.T, flat), flat.sum(axis=0)]

        return (product(windows, weight) + bias).reshape(count, height, width, outputs), pullback

    return Layer(forward, {f"{name}.weight": (inputs * 9, outputs), f"{name}.bias": (outputs,)})


def pool() -> Layer:
    """The largest of each 2 by 2; a last odd row or column is left out."""

    def forward(_: Weights, x: Floats) -> tuple[Floats, Pullback]:
        count, height, width, channels = x.shape
        rows, columns = height // 2, width // 2
        blocks = x[:, : rows * 2, : columns * 2].reshape(count, rows, 2, columns, 2, channels)
        largest = blocks.max(axis=(2, 4), keepdims=True)

        def pullback(dy: Floats) -> tuple[Floats, Weights]:
            winners = blocks == largest
            share = dy.reshape(largest.shape) / winners.sum(axis=(2, 4), keepdims=True, dtype=dy.dtype)
            dx = np.zeros_like(x)
            dx[:, : rows * 2, : columns * 2] = (winners * share).reshape(count, rows * 2, columns * 2, channels)
            return dx, []

        return largest.reshape(count, rows, columns, channels), pullback

    return Layer(forward)
