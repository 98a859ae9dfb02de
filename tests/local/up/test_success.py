"""A training that is good enough ends at that very epoch, with its model saved."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.cluster.protocol import JSON
from holdfast.local.up import LocalCluster
from tests.frameworks.jobs import completed
from tests.local.up.trainings import NEVER, checkpoint, start

EPOCHS, HIDDEN = 60, 16
TARGET, PATIENCE = 0.96, 5

Epochs = list[dict[str, float]]


def first_good(epochs: Epochs) -> int:
    return next(int(each["epoch"]) for each in epochs if each["accuracy"] >= TARGET)


def first_without_hope(epochs: Epochs) -> int:
    best, since = epochs[0]["loss"], 0
    for each in epochs[1:]:
        best, since = (each["loss"], 0) if each["loss"] < best else (best, since + 1)
        if since == PATIENCE:
            return int(each["epoch"])
    raise AssertionError("the loss got better all the time")


class Case(NamedTuple):
    name: str
    learning_rate: float
    policy: JSON
    last: Callable[[Epochs], int]
    reason: str


CASES = (
    Case("target", 0.003, {"targetAccuracy": TARGET}, first_good, "TargetReached"),
    Case("patience", 0.05, {"earlyStoppingPatience": PATIENCE}, first_without_hope, "EarlyStopped"),
)


def undisturbed(case: Case, progress: Path) -> Epochs:
    """What the trainer tells of each epoch when nobody stops it."""
    told = {"MODEL": "mlp", "DATASET": "digits", "EPOCHS": str(EPOCHS), "PARAM_HIDDEN": str(HIDDEN)}
    told |= {"LEARNING_RATE": str(case.learning_rate), "PROGRESS_FILE": str(progress)}
    subprocess.run([sys.executable, "-m", "holdfast.trainer"], env={**os.environ, **told}, check=True, timeout=240)
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    return [each for each in lines if "accuracy" in each]  # on a busy machine there are steps within an epoch as well


async def begin(box: LocalCluster, case: Case) -> None:
    """It would never save by itself, nor end."""
    parameters = {"epochs": NEVER, "learningRate": case.learning_rate, "additionalParams": {"hidden": str(HIDDEN)}}
    spec = {"hyperparameters": parameters, "checkpoint": {"frequency": NEVER}, "successPolicy": case.policy}
    await start(box, case.name, dataset="digits", **spec)


async def test_it_ends_at_the_exact_epoch_with_a_checkpoint(box: LocalCluster, tmp_path: Path) -> None:
    for case in CASES:
        await begin(box, case)
    for case in CASES:
        last = case.last(await asyncio.to_thread(undisturbed, case, tmp_path / case.name))
        assert last > PATIENCE
        ended = (await completed(box, case.name)).status
        assert ended
        assert (ended.current_epoch, ended.restart_count) == (last, 0)
        (succeeded,) = [each for each in ended.conditions if each.type == "Succeeded"]
        assert (succeeded.status, succeeded.reason) == ("True", case.reason)
        assert f"epoch {last}" in succeeded.message
        assert (checkpoint(ended).last_epoch or 0) >= last
