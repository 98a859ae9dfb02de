"""`holdfast demo`: trains a real model with two real workers on this host, in a new folder."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cli.errors import errors_as_one_line
from holdfast.cli.resource_args import this_command
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import PODS, TRAINING_JOBS
from holdfast.errors import HoldfastError
from holdfast.local.host import detect_hardware
from holdfast.runtime.process import configure, level_from

EXAMPLE = "examples/trainingjob.yaml"
NAME = "demo"
NAMESPACE = "default"
KEY = Key(NAMESPACE, NAME)
WORKERS, EPOCHS = 2, 15
FLOOR = 0.90
WITHIN_S = 300.0
POLL_S = 0.1


class DemoFailed(HoldfastError):
    """The training failed or its model is too bad."""


class Epoch(Struct, frozen=True):
    """One progress line of the trainer; epoch 0 is the untrained model."""

    epoch: int
    epochs: int
    loss: float
    accuracy: float


def run_demo() -> None:
    # A log file or a pipe has no width: do not truncate lines there.
    console = Console(width=None if sys.stdout.isatty() else 240)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    with errors_as_one_line():
        configure(level_from({"LOG_LEVEL": "error", **os.environ}))
        uvloop.run(_demo(console, folder))


async def _demo(console: Console, folder: Path) -> None:
    from holdfast.local.up import local_cluster

    console.print(f"A cluster of this machine alone, in {folder}")
    progress = folder / "progress.jsonl"
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            local_cluster(folder / "data", detect_hardware(gpus=0), limits=False) as local,
        ):
            began_s = asyncio.get_running_loop().time()
            await local.cluster.create(TRAINING_JOBS, _manifest(progress), namespace=NAMESPACE)
            console.print(f"TrainingJob {NAME}: an mlp on handwritten digits, {WORKERS} workers")
            async for epoch in _epochs(local.cluster, progress):
                console.print(
                    f"epoch {epoch.epoch:2}/{epoch.epochs}  loss {epoch.loss:.4f}  accuracy {epoch.accuracy:.1%}"
                )
            took_s = asyncio.get_running_loop().time() - began_s
            await _save_logs(local.cluster, folder)
            job = await local.cluster.get(TRAINING_JOBS, KEY)
    except TimeoutError:
        raise DemoFailed(f"not done after {WITHIN_S:.0f} s; what there is of it is in {folder}") from None
    shutil.rmtree(folder / "data")
    console.print(_table(job, read_epochs(progress), took_s, folder))
    check(job, read_epochs(progress))
    for line in _next_steps():
        console.print(line, highlight=False, soft_wrap=True)


def _next_steps() -> Iterator[str]:
    command = this_command()
    manifest = next(filter(os.path.exists, (EXAMPLE,)), "job.yaml")
    yield "What to try next:"
    yield f"  {command} up                 # runs jobs of yours on this machine, until Ctrl-C"
    yield f"  {command} apply -f {manifest}  # in another terminal"
    yield f"  {command} get tj -w          # how far they are"
    yield f"  {command} logs -f digits     # what worker 0 prints"


def _manifest(progress: Path) -> JSON:
    return {
        "metadata": {"name": NAME},
        "spec": {
            "model": "mlp",
            "dataset": "digits",
            "numWorkers": WORKERS,
            "gpusPerWorker": 0,
            "hyperparameters": {"epochs": EPOCHS, "batchSize": 64},
            "env": [{"name": "PROGRESS_FILE", "value": str(progress)}],
        },
    }


async def _epochs(cluster: Cluster, progress: Path) -> AsyncIterator[Epoch]:
    """Yield every epoch when it is done, until the job has ended."""
    shown, state = 0, ""
    while True:
        done = read_epochs(progress)
        for epoch in done[shown:]:
            yield epoch
        shown = len(done)
        if state in ("Completed", "Failed"):
            return
        job = await cluster.get(TRAINING_JOBS, KEY)
        state = str(job.status.state) if job.status else ""
        await asyncio.sleep(POLL_S)


def read_epochs(progress: Path) -> list[Epoch]:
    """The finished epochs; a progress line of a step within an epoch has no loss yet."""
    lines = progress.read_bytes().splitlines() if progress.exists() else []
    reports = (msgspec.json.decode(line, type=dict[str, Any]) for line in lines)
    return [msgspec.convert(report, Epoch) for report in reports if "step" not in report]


async def _save_logs(cluster: Cluster, folder: Path) -> None:
    """Save the logs of the workers, which are deleted with the cluster."""
    for pod in (await cluster.list(PODS, namespace=NAMESPACE, labels=f"training-job={NAME}")).items:
        (folder / f"worker-{_index(pod)}.log").write_bytes(await cluster.pod_log(pod.metadata.key))


def _index(pod: Pod) -> str:
    return pod.metadata.labels.get("batch.kubernetes.io/job-completion-index", "0")


def _table(job: TrainingJob, epochs: list[Epoch], took_s: float, folder: Path) -> Table:
    status = job.status
    rows = {"state": str(status.state) if status else "unknown"}
    if epochs:
        first, last = epochs[0], epochs[-1]
        rows |= {
            "epochs": f"{last.epoch} of {last.epochs}",
            "loss": f"{first.loss:.4f} before, {last.loss:.4f} after",
            "accuracy": f"{last.accuracy:.1%} on digits that it has not seen",
        }
    rows |= {"time": f"{took_s:.1f} s from the manifest to the end", "log": str(folder / "worker-0.log")}
    table = Table(show_header=False, title=f"TrainingJob {NAME}", title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def check(job: TrainingJob, epochs: list[Epoch]) -> None:
    """Raises `DemoFailed` unless the training completed with a good model."""
    if job.status is None or job.status.state != "Completed":
        reason = job.status.failure_reason if job.status else "nothing is known of it"
        raise DemoFailed(f"the training failed: {reason}")
    if not epochs or epochs[-1].accuracy < FLOOR:
        raise DemoFailed(f"the model is worse than it should be: its accuracy is below {FLOOR:.0%}")
