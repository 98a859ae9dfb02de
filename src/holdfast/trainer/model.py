"""The models of the reference trainer: layers, each with a forward pass and a pullback, and networks of layers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from holdfast.trainer.settings import InvalidTrainerSetting, TrainerSettings

# The array types of the trainer.

# float32 in a training; float64 where tests check a gradient against finite differences.
Floats = NDArray[np.floating]
# The arrays that workers exchange.
Doubles = NDArray[np.float64]
Indices = NDArray[np.intp]
Labels = NDArray[np.intp]
Pixels = NDArray[np.uint8] | NDArray[np.float32]


Weights = list[Floats]
# The gradient of the output → the gradients of the input and of the weights.
Pullback = Callable[[Floats], tuple[Floats, Weights]]
Forward = Callable[[Weights, Floats], tuple[Floats, Pullback]]
Product = Callable[[Floats, Floats], Floats]


class Layer(NamedTuple):
    forward: Forward
    shapes: dict[str, tuple[int, ...]] = {}


def exact(left: Floats, right: Floats) -> Floats:
    return left @ right


def half(left: Floats, right: Floats) -> Floats:
    """A product as tensor cores compute it: 16-bit factors, a 32-bit sum."""
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
    """A 3 by 3 convolution with zero padding, which preserves the size."""

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
    """2 by 2 max pooling; a last odd row or column is left out."""

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


# A stack of layers whose weights are one vector: workers add up, update and save that vector.


@dataclass(frozen=True, slots=True)
class Network:
    layers: tuple[Layer, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for layer in self.layers for name, shape in layer.shapes.items()}

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def initial(self, random: np.random.Generator) -> Floats:
        """He initialization for weights, zero for biases, which are the shapes with one dimension."""
        parts = [
            np.zeros(shape) if len(shape) == 1 else random.standard_normal(shape) * math.sqrt(2 / shape[0])
            for shape in self.shapes.values()
        ]
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    def named(self, parameters: Floats) -> dict[str, Floats]:
        ends = np.cumsum([0, *(math.prod(shape) for shape in self.shapes.values())])
        slices = [parameters[start:end] for start, end in pairwise(ends)]
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), slices, strict=True)}

    def forward(self, parameters: Floats, x: Floats) -> tuple[Floats, list[Pullback]]:
        named = self.named(parameters)
        pullbacks: list[Pullback] = []
        for layer in self.layers:
            x, pullback = layer.forward([named[name] for name in layer.shapes], x)
            pullbacks.append(pullback)
        return x, pullbacks

    def loss_and_gradient(self, parameters: Floats, x: Floats, labels: Labels) -> tuple[float, Floats]:
        """The sum, not the mean, of the cross-entropy of a batch: the sums of parts add up to the sum of the batch."""
        scores, pullbacks = self.forward(parameters, x)
        loss, gradient = _cross_entropy(scores, labels)
        found: list[Weights] = []
        for pullback in reversed(pullbacks):
            gradient, weights = pullback(gradient)
            found.append(weights)
        return loss, np.concatenate([weight.ravel() for weights in reversed(found) for weight in weights])

    def loss_and_hits(self, parameters: Floats, x: Floats, labels: Labels) -> tuple[float, int]:
        scores, _ = self.forward(parameters, x)
        loss, _ = _cross_entropy(scores, labels)
        return loss, int((scores.argmax(axis=1) == labels).sum())


def _cross_entropy(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    shifted = scores - scores.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    totals = weights.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float((np.log(totals[:, 0]) - shifted[rows, labels]).sum(dtype=np.float64))
    gradient = weights / totals
    gradient[rows, labels] -= 1
    return loss, gradient


# The three models: a linear classifier, one hidden layer, two convolutions.


def build(settings: TrainerSettings, image_shape: tuple[int, int], classes: int) -> Network:
    product = half if settings.mixed_precision else exact
    height, width = image_shape
    hidden, channels = settings.hidden, settings.channels
    if settings.model == "cnn" and min(image_shape) < 4:
        raise InvalidTrainerSetting(
            f"MODEL cnn needs images of at least 4 by 4 pixels; those of {settings.dataset} are {height} by {width}"
        )
    match settings.model:
        case "linear":
            layers = [flatten(), dense("out", height * width, classes, product)]
        case "mlp":
            layers = [
                flatten(),
                dense("hidden", height * width, hidden, product),
                relu(),
                dense("out", hidden, classes, product),
            ]
        case _:
            layers = [
                *_block("first", 1, channels, product),
                *_block("second", channels, channels * 2, product),
                flatten(),
                dense("hidden", (height // 4) * (width // 4) * channels * 2, hidden, product),
                relu(),
                dense("out", hidden, classes, product),
            ]
    return Network(tuple(layers))


def _block(name: str, inputs: int, outputs: int, product: Product) -> list[Layer]:
    return [convolution(name, inputs, outputs, product), relu(), pool()]


# The four optimizers: from parameters, gradient and moments to the next parameters and moments.


Moments = dict[str, Floats]
BETA1, BETA2, RMS_DECAY, EPSILON = 0.9, 0.999, 0.99, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The number of an update, counted from 1, and its hyperparameters."""

    number: int
    rate: float
    momentum: float
    weight_decay: float


class Optimizer(NamedTuple):
    step: Callable[[Floats, Floats, Moments, Update], tuple[Floats, Moments]]
    moments: tuple[str, ...]

    def initial(self, size: int) -> Moments:
        return {name: np.zeros(size, np.float32) for name in self.moments}


def rate(target: float, warmup_steps: int, number: int) -> float:
    """The learning rate of an update: it grows linearly over the warm-up, then stays constant."""
    return target * min(1.0, number / warmup_steps) if warmup_steps else target


def sgd(parameters: Floats, gradient: Floats, moments: Moments, update: Update) -> tuple[Floats, Moments]:
    velocity = update.momentum * moments["velocity"] + gradient
    return parameters - update.rate * velocity, {"velocity": velocity}


def rmsprop(parameters: Floats, gradient: Floats, moments: Moments, update: Update) -> tuple[Floats, Moments]:
    square = RMS_DECAY * moments["square"] + (1 - RMS_DECAY) * gradient**2
    return parameters - update.rate * gradient / (np.sqrt(square) + EPSILON), {"square": square}


def adam(parameters: Floats, gradient: Floats, moments: Moments, update: Update) -> tuple[Floats, Moments]:
    mean = BETA1 * moments["mean"] + (1 - BETA1) * gradient
    square = BETA2 * moments["square"] + (1 - BETA2) * gradient**2
    # Bias correction: both moments start from zero, which makes their early values too small.
    corrected_mean, corrected_square = mean / (1 - BETA1**update.number), square / (1 - BETA2**update.number)
    change = update.rate * corrected_mean / (np.sqrt(corrected_square) + EPSILON)
    return parameters - change, {"mean": mean, "square": square}


def adamw(parameters: Floats, gradient: Floats, moments: Moments, update: Update) -> tuple[Floats, Moments]:
    decayed = parameters * (1 - update.rate * update.weight_decay)
    return adam(decayed, gradient, moments, update)


OPTIMIZERS = {
    "adam": Optimizer(adam, ("mean", "square")),
    "sgd": Optimizer(sgd, ("velocity",)),
    "adamw": Optimizer(adamw, ("mean", "square")),
    "rmsprop": Optimizer(rmsprop, ("square",)),
}
