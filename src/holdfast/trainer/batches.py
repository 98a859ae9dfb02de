"""Which samples belong to which step: the same for every worker, whatever their number."""

from collections.abc import Iterator

import numpy as np

from holdfast.trainer.arrays import Indices

EVALUATION_BATCH = 256


def order(seed: int, epoch: int, samples: int) -> Indices:
    """The order in which an epoch takes the samples."""
    return np.random.default_rng([seed, 2, epoch]).permutation(samples)


def batches(rest: Indices, batch_size: int, accumulation_steps: int) -> list[Indices]:
    """The batches of the next step, whose gradients are accumulated."""
    return _cut(rest[: batch_size * accumulation_steps], batch_size)


def share(batch: Indices, rank: int, size: int) -> Indices:
    """A worker's part of a batch; empty where there are more workers than samples."""
    return np.array_split(batch, size)[rank]


def evaluation(samples: int, rank: int, size: int) -> Iterator[Indices]:
    yield from _cut(share(np.arange(samples), rank, size), EVALUATION_BATCH)


def _cut(indices: Indices, length: int) -> list[Indices]:
    return [indices[start : start + length] for start in range(0, len(indices), length)]
