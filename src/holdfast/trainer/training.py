"""The training loop: every worker computes its share of a batch, and the sums give every worker the same step."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from holdfast.trainer.allreduce import Group
from holdfast.trainer.data import Data
from holdfast.trainer.model import OPTIMIZERS, Doubles, Floats, Indices, Moments, Network, Update, rate
from holdfast.trainer.report import Score
from holdfast.trainer.settings import Diverged, TrainerSettings

# The state of a training. With the settings it is sufficient to continue as if the training had never stopped.


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position in a training. Seed and epoch determine the sample order, so no generator state is needed."""

    epoch: int = 0
    """Completed epochs."""
    samples: int = 0
    """Completed samples of the current epoch."""
    updates: int = 0
    """Completed steps since the beginning."""
    train_loss: float = 0.0
    """The summed loss of the completed samples of the current epoch."""
    loss_before: float = 0.0
    """The loss on the held-out data before the first step."""


@dataclass(frozen=True, slots=True)
class State:
    parameters: Floats
    moments: Moments
    at: Position


# The assignment of samples to steps: the same on every worker, whatever the number of workers.

EVALUATION_BATCH = 256


def order(seed: int, epoch: int, samples: int) -> Indices:
    """The order in which an epoch takes the samples."""
    return np.random.default_rng([seed, 2, epoch]).permutation(samples)


def batches(rest: Indices, batch_size: int, accumulation_steps: int) -> list[Indices]:
    """The batches of the next step. Their gradients are accumulated."""
    return _cut(rest[: batch_size * accumulation_steps], batch_size)


def share(batch: Indices, rank: int, size: int) -> Indices:
    """A worker's part of a batch; empty where there are more workers than samples."""
    return np.array_split(batch, size)[rank]


def evaluation(samples: int, rank: int, size: int) -> Iterator[Indices]:
    yield from _cut(share(np.arange(samples), rank, size), EVALUATION_BATCH)


def _cut(indices: Indices, length: int) -> list[Indices]:
    return [indices[start : start + length] for start in range(0, len(indices), length)]


@dataclass(frozen=True, slots=True)
class Task:
    settings: TrainerSettings
    data: Data
    network: Network
    group: Group


class StopOrSave(NamedTuple):
    """A worker's request for the end of the current step; all workers follow the request of any worker."""

    stop: bool = False
    save: bool = False


def fresh(task: Task) -> State:
    """The untrained model, from the seed; its loss is known after an evaluation."""
    parameters = task.network.initial(np.random.default_rng([task.settings.seed, 0]))
    return State(parameters, OPTIMIZERS[task.settings.optimizer].initial(task.network.size), Position())


def train_epoch(
    task: Task, state: State, poll: Callable[[], StopOrSave], after_step: Callable[[Position], None] = lambda _: None
) -> tuple[State, StopOrSave]:
    """Train to the end of the current epoch, or until any worker has a request after a step; returns the request."""
    settings = task.settings
    sample_order = order(settings.seed, state.at.epoch + 1, len(task.data.train))
    requested = StopOrSave()
    while state.at.samples < len(sample_order) and not any(requested):
        step = batches(sample_order[state.at.samples :], settings.batch_size, settings.accumulation_steps)
        state, requested = _step(task, state, step, poll())
        if state.at.samples < len(sample_order):
            after_step(state.at)
    return state, requested


def end_epoch(state: State) -> State:
    return replace(state, at=replace(state.at, epoch=state.at.epoch + 1, samples=0, train_loss=0.0))


def evaluate(task: Task, state: State) -> Score:
    """Evaluate on the held-out data, each worker on its part."""
    test = task.data.test
    loss, hits = 0.0, 0
    for chosen in evaluation(len(test), task.group.rank, task.group.size):
        part = task.network.loss_and_hits(state.parameters, test.batch(chosen), test.labels[chosen])
        loss, hits = loss + part[0], hits + part[1]
    total = task.group.sum(np.array([loss, hits], np.float64))
    _check(task, state, float(total[0]))
    return Score(float(total[0]) / len(test), float(total[1]) / len(test))


def _step(task: Task, state: State, step: list[Indices], request: StopOrSave) -> tuple[State, StopOrSave]:
    loss, gradient, requested = _all_reduce(task, state, step, request)
    _check(task, state, loss)
    samples = sum(len(batch) for batch in step)
    optimizer, at = OPTIMIZERS[task.settings.optimizer], state.at
    parameters, moments = optimizer.step(
        state.parameters,
        (gradient / samples).astype(np.float32),
        state.moments,
        _update(task.settings, at.updates + 1),
    )
    position = replace(at, samples=at.samples + samples, updates=at.updates + 1, train_loss=at.train_loss + loss)
    return State(parameters, moments, position), requested


def _all_reduce(
    task: Task, state: State, step: list[Indices], request: StopOrSave
) -> tuple[float, Doubles, StopOrSave]:
    """Loss, gradient and requests, summed over all workers.

    All three are one message, so all workers take the same steps, and save and stop after the same step.
    """
    train, network, group = task.data.train, task.network, task.group
    message = np.zeros(network.size + 3, np.float64)
    for batch in step:
        mine = share(batch, group.rank, group.size)
        loss, gradient = network.loss_and_gradient(state.parameters, train.batch(mine), train.labels[mine])
        message[:-3] += gradient
        message[-3] += loss
    message[-2:] = request
    total = group.sum(message)
    return float(total[-3]), total[:-3], StopOrSave(*(bool(votes) for votes in total[-2:]))


def _update(settings: TrainerSettings, number: int) -> Update:
    return Update(
        number=number,
        rate=rate(settings.learning_rate, settings.warmup_steps, number),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def _check(task: Task, state: State, loss: float) -> None:
    if not math.isfinite(loss):
        raise Diverged(
            f"the training has diverged: the loss is {loss} after {state.at.updates} steps, in epoch "
            f"{state.at.epoch + 1}; try a LEARNING_RATE below {task.settings.learning_rate:g}, or WARMUP_STEPS"
        )
