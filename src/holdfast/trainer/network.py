"""A stack of layers whose weights are one vector: what is added up, updated and saved is that vector."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from holdfast.trainer.arrays import Floats, Labels
from holdfast.trainer.layers import Layer, Pullback, Weights


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
        """He's scale for weights, zero for biases: they are the vectors among the shapes."""
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
        """The summed, not the mean, cross-entropy of a batch: sums of parts of a batch add up to the whole's."""
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
