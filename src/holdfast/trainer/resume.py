"""How a training begins: anew, or from a checkpoint that worker 0 reads for all."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from holdfast.trainer import checkpoint
from holdfast.trainer.errors import BadSetting
from holdfast.trainer.report import Report, Score
from holdfast.trainer.state import Position, State
from holdfast.trainer.training import Task, evaluate, fresh


def begin(task: Task, report: Report) -> tuple[State, Score]:
    """Where the training starts, and how good the model is there."""
    state = fresh(task)
    if task.settings.resume_from is not None:
        return _resumed(task, state, task.settings.resume_from, report)
    score = evaluate(task, state)
    report.epoch(0, score)
    return replace(state, at=replace(state.at, loss_before=score.loss)), score


def _resumed(task: Task, state: State, folder: Path, report: Report) -> tuple[State, Score]:
    if task.group.rank == 0:
        state = checkpoint.load(folder, task.network, state.moments, task.settings.shape)
        if state.at.samples >= len(task.data.train):
            raise BadSetting(f"RESUME_FROM {folder} was made with more samples than {task.settings.dataset} has here")
    state = _shared(task, state)
    score = evaluate(task, state)
    report.say(
        f"resumed from {folder} after {state.at.updates} steps, in epoch {state.at.epoch + 1}: "
        f"loss {score.loss:.4f}  accuracy {score.accuracy:.4f}"
    )
    return state, score


def _shared(task: Task, state: State) -> State:
    """Worker 0's state: the others need not see its disk, and can't resume from another checkpoint."""
    names = sorted(state.moments)
    position = Position(**json.loads(task.group.broadcast(json.dumps(asdict(state.at)).encode())))
    arrays = np.stack([state.parameters, *(state.moments[name] for name in names)])
    shared = np.frombuffer(task.group.broadcast(arrays.tobytes()), np.float32).reshape(arrays.shape)
    return State(shared[0], dict(zip(names, shared[1:], strict=True)), position)
