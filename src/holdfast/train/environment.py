"""The environment variables of a training process. An empty variable counts as not set, an invalid one is an error.

An invalid rank must not pass for rank 0: two processes would then write the same checkpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# The errors. Their messages are for the person who reads the worker's log.


class TrainError(Exception):
    """The base class of the errors that this package raises."""


class BadEnvironment(TrainError):
    """An environment variable of the process is invalid."""


class CheckpointFailed(TrainError):
    """A checkpoint was not saved. No partial content is left under the name of a checkpoint."""


PYTORCH = ("RANK", "WORLD_SIZE")
JAX = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
# The task types of TF_CONFIG that train; the first task of them saves.
TENSORFLOW_TASKS = ("chief", "worker")


class Environment(NamedTuple):
    rank: int
    world: int
    attempt: int
    restart: int
    """How often a launcher (torchrun) has restarted its processes within this attempt."""
    epochs: int | None
    checkpoint_dir: Path | None
    resume_from: Path | None
    frequency: int
    interval_s: float | None
    progress_file: Path | None
    notice_file: Path | None


def read(environ: Mapping[str, str]) -> Environment:
    rank, world = rank_and_world(environ)
    return Environment(
        rank=rank,
        world=world,
        attempt=_whole(environ, "HOLDFAST_ATTEMPT") or 0,
        restart=_whole(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
        epochs=_whole(environ, "EPOCHS"),
        checkpoint_dir=_path(environ, "CHECKPOINT_DIR"),
        resume_from=_path(environ, "RESUME_FROM"),
        frequency=_whole(environ, "CHECKPOINT_FREQUENCY", least=1) or 1,
        interval_s=_seconds(environ, "CHECKPOINT_INTERVAL_SECONDS"),
        progress_file=_path(environ, "PROGRESS_FILE"),
        notice_file=_path(environ, "HOLDFAST_NOTICE_FILE"),
    )


def rank_and_world(environ: Mapping[str, str]) -> tuple[int, int]:
    """The rank of this process, and the number of ranks; 0 and 1 where no framework's variables are set."""
    for names in (PYTORCH, JAX):
        if any(environ.get(name) for name in names):
            return _numbered(environ, *names)
    if environ.get("TF_CONFIG"):
        return _tensorflow(environ["TF_CONFIG"])
    return 0, 1


def _numbered(environ: Mapping[str, str], rank_name: str, world_name: str) -> tuple[int, int]:
    rank, world = _whole(environ, rank_name), _whole(environ, world_name, least=1)
    if rank is None or world is None:
        given, missing = (rank_name, world_name) if world is None else (world_name, rank_name)
        raise BadEnvironment(f"{given} is set and {missing} is not: set both, or none where the process is alone")
    if rank >= world:
        raise BadEnvironment(f"{rank_name} is {rank}: with {world_name} {world} it is at most {world - 1}")
    return rank, world


def _tensorflow(text: str) -> tuple[int, int]:
    try:
        config = json.loads(text)
        task, index = str(config["task"]["type"]), int(config["task"]["index"])
        sizes = {kind: len(config["cluster"].get(kind, ())) for kind in TENSORFLOW_TASKS}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = '{"cluster": {"worker": [...]}, "task": {"type": "worker", "index": 0}}'
        raise BadEnvironment(f"TF_CONFIG is not like {expected}") from error
    if not 0 <= index < sizes.get(task, 0):
        raise BadEnvironment(f"TF_CONFIG gives this process the task {task} {index}, which is none of its workers")
    return (index if task == "chief" else sizes["chief"] + index), sum(sizes.values())


def _whole(environ: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    text = environ.get(name, "")
    if text and (re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) is None or int(text) < least):
        raise BadEnvironment(f"{name} is {text!r}: write a whole number of at least {least}")
    return int(text) if text else None


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadEnvironment(f"{name} is {text!r}: write a number of seconds above 0")
    return value


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]).absolute() if environ.get(name) else None
