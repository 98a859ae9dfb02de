"""Small trainings in this process, for tests that look inside."""

import numpy as np

from holdfast.trainer.allreduce import SingleWorker
from holdfast.trainer.data import load
from holdfast.trainer.model import build
from holdfast.trainer.settings import settings
from holdfast.trainer.training import State, StopOrSave, Task, end_epoch, train_epoch


def task(**environ: str) -> Task:
    """A model of a few hundred weights on a hundred samples, unless told otherwise."""
    small = {"DATASET": "synthetic", "PARAM_SAMPLES": "100", "PARAM_HIDDEN": "8", "BATCH_SIZE": "16"}
    chosen = settings(small | environ)
    data = load(chosen)
    return Task(chosen, data, build(chosen, data.image_shape, data.classes), SingleWorker())


def trained(training: Task, state: State, epochs: int) -> State:
    """To the end of that epoch."""
    while state.at.epoch < epochs:
        state, wished = train_epoch(training, state, StopOrSave)
        assert not any(wished)
        state = end_epoch(state)
    return state


def same(one: State, other: State) -> bool:
    """To the last bit."""
    return (
        one.at == other.at
        and np.array_equal(one.parameters, other.parameters)
        and one.moments.keys() == other.moments.keys()
        and all(np.array_equal(one.moments[name], other.moments[name]) for name in one.moments)
    )
