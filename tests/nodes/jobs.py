"""TrainingJobs on real nodes."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.control_plane.waiting import eventually
from tests.nodes.lab import Lab
from tests.operator.user import apply, kubectl, status

WITHIN_S = 240.0
SMALL = {"samples": "50", "hidden": "8", "join-timeout": str(int(WITHIN_S))}


async def provide_volume(lab: Lab, namespace: str) -> str:
    """A claim for a folder of this host, which all nodes see: a file system that they share. Returns its name."""
    folder = shared_folder(lab, namespace)
    await asyncio.to_thread(folder.mkdir, parents=True)
    await asyncio.to_thread(folder.chmod, 0o777)
    size, shared = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            "capacity": size,
            "accessModes": shared,
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": "shared"},
        },
    }
    spec = {"accessModes": shared, "resources": {"requests": size}, "storageClassName": "", "volumeName": namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": spec}
    await apply(lab.plane, namespace, yaml.safe_dump_all([volume, claim]))
    return "shared"


def shared_folder(lab: Lab, namespace: str) -> Path:
    return lab.folder / "shared" / namespace


def training_job(name: str, **spec: Any) -> str:
    """Two workers of the reference trainer, on a node each where a node has one GPU; many small epochs."""
    whole = {
        "model": "mlp",
        "dataset": "synthetic",
        "numWorkers": 2,
        "gpusPerWorker": 1,
        "hyperparameters": {"epochs": 400, "additionalParams": SMALL},
        **spec,
    }
    body = {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": whole}
    return yaml.safe_dump(body)


async def ended(lab: Lab, namespace: str, name: str) -> dict[str, Any]:
    """The status of a job that has come to its end."""
    return await eventually(
        partial(status, lab.plane, namespace, name),
        lambda seen: seen.get("state") in ("Completed", "Failed"),
        what=f"{name} has ended",
        within_s=WITHIN_S,
    )


async def workers(lab: Lab, namespace: str, name: str) -> dict[int, dict[str, Any]]:
    """The pods of the newest attempt, by their index."""
    selector = f"training-job={name}"
    listing = json.loads(await kubectl(lab.plane, "get", "pods", "-n", namespace, "-l", selector, "-o", "json"))
    attempts = [int(pod["metadata"]["labels"]["holdfast.dev/attempt"]) for pod in listing["items"]]
    newest = [
        pod for pod, attempt in zip(listing["items"], attempts, strict=True) if attempt == max(attempts, default=0)
    ]
    return {int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]): pod for pod in newest}
