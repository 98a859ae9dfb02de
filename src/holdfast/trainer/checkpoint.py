"""A checkpoint: the folder checkpoint-epoch-N with state.json, model.npz and optimizer.npz.

A checkpoint is written under a temporary name and renamed, so a folder of the final name is always complete. A marker
declares that. N is the number of completed epochs; a checkpoint saved within an epoch has the number of that epoch, and
the next save of the epoch replaces it.
"""

import json
import math
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np

from holdfast.train import checkpoint
from holdfast.train.checkpoint import SaveId, publish, sync_folder
from holdfast.trainer.model import Floats, Moments, Network
from holdfast.trainer.report import Report, Score
from holdfast.trainer.settings import InvalidTrainerSetting, TrainerError, unusable
from holdfast.trainer.training import Position, State, Task, evaluate, fresh

VERSION = 1
# What json, zipfile and numpy raise on damaged files: a flipped bit may request a password or an unknown compression.
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
Shape = dict[str, str | int]


def prepare(folder: Path) -> None:
    """Fail before the training, not after its first epoch, if checkpoints can't be saved."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unusable(f"can't write to CHECKPOINT_DIR {folder}: {error.strerror}", error) from error


def save(
    folder: Path, network: Network, state: State, shape: Shape, metrics: Mapping[str, float] | None = None
) -> Path:
    target = folder / f"checkpoint-epoch-{_number(state.at)}"
    partial = folder / f".{target.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _write(partial, network, state, shape)
        _write_marker(partial, state, metrics)
        publish(partial, target)
        shutil.rmtree(partial, ignore_errors=True)  # the checkpoint that was replaced
    except OSError as error:
        raise TrainerError(f"can't save the checkpoint {target}: {error.strerror}") from error
    return target


def _number(at: Position) -> int:
    return at.epoch + (at.samples > 0)


def load(folder: Path, network: Network, moments: Moments, shape: Shape) -> State:
    """The saved state; its moments must have the names and sizes of `moments`, which come from a fresh start."""
    try:
        facts = json.loads((folder / "state.json").read_text())
        if facts["version"] != VERSION:
            raise InvalidTrainerSetting(f"RESUME_FROM {folder} has the format {facts['version']}, not {VERSION}")
        _check_same_training(folder, facts["training"], shape)
        parameters = _read(folder / "model.npz", network.shapes)
        saved_moments = _read(folder / "optimizer.npz", dict.fromkeys(moments, (network.size,)))
        position = _position(facts["position"])
    except UNREADABLE as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        raise unusable(f"RESUME_FROM {folder} is not a whole checkpoint ({reason})", error) from error
    return State(np.concatenate([array.ravel() for array in parameters.values()]), saved_moments, position)


def _position(facts: Mapping[str, int | float]) -> Position:
    values = {field.name: facts[field.name] for field in fields(Position)}
    if not all(isinstance(value, int | float) and 0 <= value < math.inf for value in values.values()):
        raise ValueError(f"{values} is no position in a training")
    epoch, samples, updates = (int(values[name]) for name in ("epoch", "samples", "updates"))
    train_loss, loss_before = float(values["train_loss"]), float(values["loss_before"])
    return Position(epoch=epoch, samples=samples, updates=updates, train_loss=train_loss, loss_before=loss_before)


def _write(folder: Path, network: Network, state: State, shape: Shape) -> None:
    np.savez(folder / "model.npz", allow_pickle=False, **network.named(state.parameters))
    np.savez(folder / "optimizer.npz", allow_pickle=False, **state.moments)
    facts = {"version": VERSION, "training": shape, "position": asdict(state.at)}
    (folder / "state.json").write_text(json.dumps(facts, indent=2) + "\n")


def _write_marker(folder: Path, state: State, metrics: Mapping[str, float] | None) -> None:
    # Within an epoch this trainer counts samples, where the SDK counts steps.
    saved = SaveId(attempt=0, restart=0, epoch=_number(state.at), step=state.at.samples or None)
    checkpoint.write_marker(folder / checkpoint.WHOLE, saved, shards=1, rank=0, metrics=metrics)
    for file in (*folder.iterdir(), folder):
        sync_folder(file)


def _check_same_training(folder: Path, saved: Shape, shape: Shape) -> None:
    differences = [
        f"{name} {saved.get(name)!r}, not {value!r}" for name, value in shape.items() if saved.get(name) != value
    ]
    if differences:
        raise InvalidTrainerSetting(f"RESUME_FROM {folder} is of another training: {'; '.join(differences)}")


def _read(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in shapes}
    for name, shape in shapes.items():
        if found[name].shape != shape or found[name].dtype != np.float32:
            raise ValueError(f"{file.name}: {name} is {found[name].dtype} {found[name].shape}, not float32 {shape}")
    return found


# The start of a training: fresh, or from a checkpoint that worker 0 reads for all.


def begin(task: Task, report: Report) -> tuple[State, Score]:
    """The state that the training starts from, and the score of the model."""
    state, folder = fresh(task), task.settings.resume_from
    if folder is not None:
        if _exists_on_worker0(task, folder):
            return _resume(task, state, folder, report)
        report.log(f"RESUME_FROM {folder} does not exist: there is nothing to resume from")
    score = evaluate(task, state)
    report.epoch(0, score)
    return replace(state, at=replace(state.at, loss_before=score.loss)), score


def _exists_on_worker0(task: Task, folder: Path) -> bool:
    """Whether worker 0 has the folder. An unreadable checkpoint is an error, and no reason for a fresh start."""
    try:
        folder.lstat()
        exists = True
    except OSError as error:
        exists = not isinstance(error, FileNotFoundError)
    return bool(task.group.broadcast(b"there" if exists else b""))


def _resume(task: Task, state: State, folder: Path, report: Report) -> tuple[State, Score]:
    if task.group.rank == 0:
        state = load(folder, task.network, state.moments, task.settings.shape)
        if state.at.samples >= len(task.data.train):
            raise InvalidTrainerSetting(
                f"RESUME_FROM {folder} was made with more samples than {task.settings.dataset} has here"
            )
    state = _broadcast_state(task, state)
    score = evaluate(task, state)
    report.log(
        f"resumed from {folder} after {state.at.updates} steps, in epoch {state.at.epoch + 1}: "
        f"loss {score.loss:.4f}  accuracy {score.accuracy:.4f}"
    )
    return state, score


def _broadcast_state(task: Task, state: State) -> State:
    """The state of worker 0: the other workers need no access to its disk, and can't resume from another checkpoint."""
    names = sorted(state.moments)
    position = Position(**json.loads(task.group.broadcast(json.dumps(asdict(state.at)).encode())))
    arrays = np.stack([state.parameters, *(state.moments[name] for name in names)])
    shared = np.frombuffer(task.group.broadcast(arrays.tobytes()), np.float32).reshape(arrays.shape)
    return State(shared[0], dict(zip(names, shared[1:], strict=True)), position)
