"""The four optimizers: from parameters, gradient and moments to the next parameters and moments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from holdfast.trainer.model import Floats

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
