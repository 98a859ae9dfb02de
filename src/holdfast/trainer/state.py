"""Where a training stands: with the settings, all that is needed to go on as if it had never stopped."""

from dataclasses import dataclass

from holdfast.trainer.arrays import Floats
from holdfast.trainer.optimizers import Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The order of the samples is a function of seed and epoch, so that no generator's state is part of it."""

    epoch: int = 0
    """Whole epochs that are done."""
    samples: int = 0
    """Samples that are done of the epoch after those."""
    updates: int = 0
    """Steps that are done since the beginning."""
    train_loss: float = 0.0
    """The summed loss of those samples."""
    loss_before: float = 0.0
    """The loss on the held-out data before the first step."""


@dataclass(frozen=True, slots=True)
class State:
    parameters: Floats
    moments: Moments
    at: Position
