"""A training that loses a worker to SIGKILL ends with the same loss as one that was left alone."""

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.local.up import LocalCluster
from tests.control_plane.ports import free_ports
from tests.control_plane.waiting import eventually
from tests.frameworks.jobs import NAMESPACE, ROOT, WITHIN_S, completed, logs, start
from tests.frameworks.programs.epochs import EPOCHS, HELD_EPOCH

PROGRAMS = {"pytorch": "torch_training", "jax": "jax_training"}
SAVED = HELD_EPOCH - 1


@dataclass(frozen=True)
class Training:
    """One program, and the cluster that it is to run on; `data` is where that keeps its volumes."""

    box: LocalCluster
    data: Path
    python: Path
    framework: str

    async def start(self, name: str, hold: Path) -> None:
        (port,) = free_ports(1)
        await start(
            self.box,
            name,
            framework=self.framework,
            command=[str(self.python), "-m", f"tests.frameworks.programs.{PROGRAMS[self.framework]}"],
            port=port,
            env=[{"name": "PYTHONPATH", "value": str(ROOT)}, {"name": "HOLD", "value": str(hold)}],
            checkpoint={"retention": EPOCHS, "storage": {"type": "pvc", "size": "1Gi"}},
            failurePolicy={"backoffLimit": 1},
        )

    async def restarts(self, name: str) -> int:
        """Wait for the job's end; how often it was started anew."""
        job = await completed(self.box, name)
        assert job.status is not None
        return job.status.restart_count

    async def loss(self, name: str) -> float:
        """As worker 0 has said it."""
        log = (await logs(self.box, name))[0]
        return float(json.loads(log.splitlines()[-1])["loss"])

    def saved(self, name: str, attempt: int) -> list[int]:
        """The epochs whose checkpoints are in the attempt's folder."""
        (volume,) = (self.data / "volumes" / NAMESPACE / f"{name}-checkpoints").glob(f"{NAMESPACE}/{name}/*")
        folders = volume.glob(f"attempt-{attempt}/checkpoint-epoch-*")
        return sorted(int(folder.name.rpartition("-")[2]) for folder in folders)


async def left_alone(training: Training, hold: Path) -> float:
    name = f"{training.framework}-alone"
    await training.start(name, hold)
    assert await training.restarts(name) == 0
    assert training.saved(name, attempt=0) == list(range(1, EPOCHS + 1))
    return await training.loss(name)


async def killed(training: Training, hold: Path, victim: int) -> float:
    name = f"{training.framework}-killed-{victim}"
    await asyncio.to_thread(hold.mkdir)
    await training.start(name, hold)
    await kill_when_held(hold, victim)
    assert await training.restarts(name) == 1
    restored = await logs(training.box, name, container="holdfast-sidecar")
    assert [resumed_from(log) for log in restored] == [f"checkpoint-epoch-{SAVED} of attempt 0"] * 2
    assert all(f"resumed after epoch {SAVED}" in log.splitlines() for log in await logs(training.box, name))
    assert training.saved(name, attempt=0) == list(range(1, SAVED + 1))
    assert training.saved(name, attempt=1) == list(range(SAVED, EPOCHS + 1))
    return await training.loss(name)


def resumed_from(log: str) -> str:
    """The checkpoint that a sidecar has put in place."""
    (line,) = [line for line in map(json.loads, log.splitlines()) if line["event"] == "resuming"]
    return str(line["checkpoint"])


async def kill_when_held(hold: Path, victim: int) -> None:
    """Both workers are held in the middle of an epoch; one is killed there, and the other is let go."""
    held = [hold / str(rank) for rank in range(2)]

    async def look() -> list[bool]:
        return [file.exists() for file in held]

    await eventually(look, all, what="both workers are held", within_s=WITHIN_S)
    os.kill(int(held[victim].read_text()), signal.SIGKILL)
    await asyncio.to_thread(hold.rename, hold.with_name(f"let go of {victim}"))


@pytest.mark.long
async def test_a_jax_training_that_loses_either_worker_ends_with_the_same_loss(
    box: LocalCluster, data: Path, tmp_path: Path, jax_python: Path
) -> None:
    training = Training(box, data, jax_python, "jax")
    expected = await left_alone(training, tmp_path / "hold")
    assert [await killed(training, tmp_path / "hold", victim) for victim in range(2)] == [expected, expected]


async def test_a_pytorch_training_that_loses_either_worker_ends_with_the_same_loss(
    box: LocalCluster, data: Path, tmp_path: Path, torch_python: Path
) -> None:
    training = Training(box, data, torch_python, "pytorch")
    expected = await left_alone(training, tmp_path / "hold")
    assert [await killed(training, tmp_path / "hold", victim) for victim in range(2)] == [expected, expected]
