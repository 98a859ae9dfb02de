"""The scripts in examples/train lose a worker to SIGKILL and end with the loss of a run that was left alone.

Changed in their manifests: the interpreter, since no image is run here, and the number of epochs, so that there is time
to kill a worker.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import CONFIG_MAPS, TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.control_plane.ports import free_ports
from tests.control_plane.waiting import eventually
from tests.frameworks.jobs import NAMESPACE, ROOT, WITHIN_S, completed, logs

EXAMPLES = ROOT / "examples" / "train"
SCRIPTS = "train-examples"
EPOCHS, FREQUENCY = 300, 10


@pytest.fixture(scope="module")
async def scripts(box: LocalCluster) -> AsyncIterator[None]:
    """What `kubectl create configmap train-examples --from-file examples/train` makes."""
    texts = {file.name: file.read_text() for file in EXAMPLES.iterdir() if file.is_file()}
    await box.cluster.create(CONFIG_MAPS, {"metadata": {"name": SCRIPTS}, "data": texts}, namespace=NAMESPACE)
    yield
    await box.cluster.delete(CONFIG_MAPS, Key(NAMESPACE, SCRIPTS))


@dataclass(frozen=True)
class Example:
    box: LocalCluster
    data: Path
    script: str
    python: str

    async def start(self, name: str, **variables: str) -> None:
        body: JSON = yaml.safe_load((EXAMPLES / f"{self.script}.yaml").read_text())
        spec = body["spec"]
        spec["command"] = [self.python, *spec["command"][1:]]
        spec["env"] = [{"name": name, "value": value} for name, value in variables.items()]
        spec["env"].append({"name": "PYTHONPATH", "value": str(ROOT / "src")})
        spec["hyperparameters"] = {"epochs": EPOCHS}
        spec["checkpoint"]["frequency"] = FREQUENCY
        spec["networking"] = {"masterPort": free_ports(1)[0]}
        await self.box.cluster.create(TRAINING_JOBS, {**body, "metadata": {"name": name}}, namespace=NAMESPACE)

    async def ended(self, name: str) -> tuple[int, list[str]]:
        """How often it was started anew, and what worker 0 of the last attempt has said."""
        job = await completed(self.box, name)
        assert job.status is not None
        return job.status.restart_count, (await logs(self.box, name))[0].splitlines()

    async def kill(self, name: str, victim: int) -> None:
        """Once a checkpoint is there to go on from."""
        volume = self.data / "volumes" / NAMESPACE / f"{name}-checkpoints"

        async def saved() -> list[Path]:
            return list(volume.rglob(f"checkpoint-epoch-{FREQUENCY}"))

        await eventually(saved, bool, what=f"{name} has saved", within_s=WITHIN_S)
        (worker,) = workers(name, victim, f"{self.script}.py")
        os.kill(worker, signal.SIGKILL)


def workers(name: str, index: int, script: str) -> Iterator[int]:
    """The processes that run the script as that worker of the job."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        words, variables = command.decode().split("\0"), environ.decode(errors="replace").split("\0")
        is_of_job = any(each.startswith("CHECKPOINT_DIR=") and f"/{name}-checkpoints/" in each for each in variables)
        if is_of_job and f"HOLDFAST_INDEX={index}" in variables and len(words) > 1 and words[1].endswith(script):
            yield int(folder.name)


async def ends_alike(example: Example, victim: int, variables: Callable[[], dict[str, str]] = dict) -> None:
    alone, killed = (f"{example.script.replace('_', '-')}-{end}" for end in ("alone", "killed"))
    await example.start(alone, **variables())
    restarts, expected = await example.ended(alone)
    assert restarts == 0
    assert not [line for line in expected if line.startswith("resumed")]
    await example.start(killed, **variables())
    await example.kill(killed, victim)
    restarts, said = await example.ended(killed)
    assert restarts == 1
    assert [line for line in said if line.startswith("resumed from checkpoint-epoch-")]
    assert said[-1].startswith("loss ")
    assert said[-1] == expected[-1]


@pytest.mark.usefixtures("scripts")
async def test_the_numpy_example_ends_alike_when_a_worker_is_killed(
    box: LocalCluster, data: Path, tmp_path: Path
) -> None:
    """It also reports: every epoch once, and again those that the kill has cost."""
    progress = tmp_path / "progress"
    example = Example(box, data, "numpy_digits", "python")
    await ends_alike(example, 0, lambda: {"PROGRESS_FILE": str(progress)})
    written = (await asyncio.to_thread(progress.read_text)).splitlines()
    epochs = [line["epoch"] for line in map(json.loads, written) if "step" not in line]
    assert epochs[:EPOCHS] == list(range(1, EPOCHS + 1))
    restarted = epochs.index(EPOCHS, EPOCHS)
    assert sorted(set(epochs[EPOCHS : restarted + 1])) == list(range(1, EPOCHS + 1))
    assert json.loads(written[-1])["accuracy"] > 0.95


@pytest.mark.usefixtures("scripts")
async def test_the_pytorch_example_ends_alike_when_a_worker_is_killed(
    box: LocalCluster, data: Path, torch_python: Path
) -> None:
    await ends_alike(Example(box, data, "torch_ddp", str(torch_python)), 1)


@pytest.mark.long
@pytest.mark.usefixtures("scripts")
async def test_the_jax_example_ends_alike_when_a_worker_is_killed(
    box: LocalCluster, data: Path, jax_python: Path
) -> None:
    await ends_alike(Example(box, data, "jax_data_parallel", str(jax_python)), 0)


@pytest.mark.usefixtures("scripts")
async def test_the_keras_example_ends_alike_when_a_worker_is_killed(
    box: LocalCluster, data: Path, tensorflow_python: Path
) -> None:
    """TensorFlow listens on all addresses of a machine: workers on the same one need ports of their own."""
    await ends_alike(Example(box, data, "keras_multiworker", str(tensorflow_python)), 1, tensorflow_ports)


def tensorflow_ports() -> dict[str, str]:
    hosts = json.dumps([f"127.0.0.1:{port}" for port in free_ports(2)])
    task = '{"type": "worker", "index": $(HOLDFAST_INDEX)}'
    return {"TF_CONFIG": f'{{"cluster": {{"worker": {hosts}}}, "task": {task}}}'}
