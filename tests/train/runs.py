"""Runs as a worker has them, and what they leave."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.train import environment
from holdfast.train.progress import GpuMonitor
from holdfast.train.run import Run

# Also on a machine that has some.
NONE = GpuMonitor("no-such-library.so")


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def worker(
    folder: Path,
    *,
    rank: int = 0,
    world: int = 1,
    shards: bool = False,
    agree: Callable[[bool], bool] | None = None,
    clock: Callable[[], float] | None = None,
    gpus: GpuMonitor | None = None,
    **variables: str,
) -> Run:
    """A process whose checkpoints, progress and notice are in the folder; a variable that is "" is not set."""
    environ = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "CHECKPOINT_DIR": str(folder / "attempt-0"),
        "RESUME_FROM": str(folder / "attempt-0.resume"),
        "PROGRESS_FILE": str(folder / "progress"),
        "HOLDFAST_NOTICE_FILE": str(folder / "notice"),
        **variables,
    }
    return Run(environment.read(environ), shards=shards, agree=agree, clock=clock or Clock(), gpus=gpus or NONE)


def save(run: Run, text: str, epoch: int | None = None) -> None:
    with run.checkpoint(epoch) as folder:
        (folder / "model").write_text(text)


def resume_from(folder: Path, name: str) -> None:
    """As the sidecar leaves it."""
    (folder / "attempt-0.resume").symlink_to(Path("attempt-0", name))


def models(folder: Path) -> dict[str, str]:
    """Every checkpoint of the attempt, by its name, with what is in it."""
    found = (folder / "attempt-0").glob("checkpoint-epoch-*")
    return {path.name: (path / "model").read_text() for path in found}


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in (folder / "attempt-0").iterdir()} - set(models(folder))


def lines(folder: Path) -> list[dict[str, Any]]:
    file = folder / "progress"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
