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
    state, folder = fresh(task), task.settings.resume_from
    if folder is not None:
        if _is_there(task, folder):
            return _resumed(task, state, folder, report)
        report.say(f"RESUME_FROM {folder} does not exist: there is nothing to resume from")
    score = evaluate(task, state)
    report.epoch(0, score)
    return replace(state, at=replace(state.at, loss_before=score.loss)), score


def _is_there(task: Task, folder: Path) -> bool:
    """As worker 0 sees it. What is there and can't be read is an error, and no reason to train from the beginning."""
    try:
        folder.lstat()
        there = True
    except OSError as error:
        there = not isinstance(error, FileNotFoundError)
    return bool(task.group.broadcast(b"there" if there else b""))


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
