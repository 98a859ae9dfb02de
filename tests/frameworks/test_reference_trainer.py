"""The reference trainer keeps to what the operator promises to every program."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.control_plane.waiting import eventually
from tests.frameworks.jobs import NAMESPACE, WITHIN_S, completed, logs

# Many small epochs: there is time to kill a worker after the second.
EPOCHS = 200


def manifest(name: str, epochs: int = EPOCHS) -> JSON:
    small = {"samples": "50", "hidden": "8", "join-timeout": str(int(WITHIN_S))}
    return {
        "metadata": {"name": name},
        "spec": {
            "model": "mlp",
            "dataset": "synthetic",
            "numWorkers": 2,
            "gpusPerWorker": 0,
            "hyperparameters": {"epochs": epochs, "additionalParams": small},
            "checkpoint": {"storage": {"size": "1Gi"}},
            "failurePolicy": {"backoffLimit": 1},
        },
    }


def checkpoints(data: Path, name: str) -> list[Path]:
    return list((data / "volumes" / NAMESPACE / f"{name}-checkpoints").rglob("checkpoint-epoch-2"))


def trainers(name: str, index: int) -> Iterator[int]:
    """The processes of that worker of the job."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        variables = environ.decode(errors="replace").split("\0")
        is_of_job = any(each.startswith("CHECKPOINT_DIR=") and f"/{name}-checkpoints/" in each for each in variables)
        if b"-m\0holdfast.trainer" in command and f"HOLDFAST_INDEX={index}" in variables and is_of_job:
            yield int(folder.name)


async def test_a_training_that_loses_a_worker_ends_as_if_nothing_had_happened(box: LocalCluster, data: Path) -> None:
    for name in ("reference-alone", "reference-killed"):
        await box.cluster.create(TRAINING_JOBS, manifest(name), namespace=NAMESPACE)

    async def saved() -> list[Path]:
        return checkpoints(data, "reference-killed")

    await eventually(saved, bool, what="the second epoch is saved", within_s=WITHIN_S)
    (victim,) = trainers("reference-killed", 1)
    os.kill(victim, signal.SIGKILL)
    alone, restarted = [await completed(box, name) for name in ("reference-alone", "reference-killed")]
    assert alone.status is not None
    assert restarted.status is not None
    assert (alone.status.restart_count, restarted.status.restart_count) == (0, 1)
    log_alone, log_restarted = [
        (await logs(box, name))[0].splitlines() for name in ("reference-alone", "reference-killed")
    ]
    assert "does not exist: there is nothing to resume from" in log_alone[1]
    assert log_restarted[1].startswith("resumed from ")
    assert json.loads(log_restarted[-1]) == json.loads(log_alone[-1])


async def test_a_job_goes_on_from_the_checkpoint_of_another(box: LocalCluster, data: Path) -> None:
    """From the volume that both keep theirs on, or from a volume of its own."""
    await box.cluster.create(TRAINING_JOBS, manifest("reference-first", epochs=2), namespace=NAMESPACE)
    await completed(box, "reference-first")
    (saved,) = checkpoints(data, "reference-first")
    claim = data / "volumes" / NAMESPACE / "reference-first-checkpoints"
    mounted = {"volumes": [{"name": "old", "hostPath": {"path": str(claim)}}]}
    for name, address, template in (
        ("reference-neighbour", str(saved.relative_to(claim)), {}),
        ("reference-mounted", f"/old/{saved.relative_to(claim)}", mounted),
    ):
        body = manifest(name, epochs=3)
        mounts = [{"name": volume["name"], "mountPath": "/old"} for volume in template.get("volumes", ())]
        body["spec"] |= {
            "checkpoint": {"resumeFrom": address, "storage": {"pvcName": "reference-first-checkpoints"}},
            "podTemplate": {**template, "volumeMounts": mounts},
        }
        await box.cluster.create(TRAINING_JOBS, body, namespace=NAMESPACE)
        await completed(box, name)
        lines = (await logs(box, name))[0].splitlines()
        assert lines[1].startswith("resumed from ")
        assert [line.split()[1] for line in lines if line.startswith("epoch ")] == ["3/3"]


async def test_a_volume_that_can_t_be_used_keeps_the_job_waiting_and_its_message_says_why(
    box: LocalCluster, data: Path
) -> None:
    folder = data / "volumes" / NAMESPACE / "reference-spoilt-checkpoints" / "mine" / "attempt-0"
    await asyncio.to_thread(folder.parent.mkdir, parents=True)
    await asyncio.to_thread(folder.touch)
    body = manifest("reference-spoilt")
    body["spec"] |= {"checkpoint": {"storage": {"prefix": "mine"}}, "failurePolicy": {"backoffLimit": 0}}
    await box.cluster.create(TRAINING_JOBS, body, namespace=NAMESPACE)

    async def message() -> str:
        job = await box.cluster.get(TRAINING_JOBS, Key(NAMESPACE, "reference-spoilt"))
        return job.status.message or "" if job.status is not None else ""

    advice = "a file is in the place of a folder: remove it"
    await eventually(message, lambda said: str(folder) in said and advice in said, what=advice)
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, "reference-spoilt"))
