"""TrainingJobs with checkpoints, and what is saved for them, behind the commands' back."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.api.meta import Key
from holdfast.checkpoints.manifest import CheckpointName
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.cluster.errors import AlreadyExists
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import CLAIMS, SECRETS, TRAINING_JOBS
from tests.checkpoints.making import ABOUT, MODEL, save
from tests.checkpoints.servers.server import BUCKET, Server
from tests.cli.lab import CommandLab

PREFIX = "team/digits"
RUNNING, COMPLETED = {"state": "Running"}, {"state": "Completed"}
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG"}


async def claim_job(lab: CommandLab, name: str, status: JSON = COMPLETED, *, retention: int = 3, **spec: object) -> Key:
    """With a claim of its own, which is there: where an operator works, it may have made it already."""
    await lab.job(name, status, checkpoint={"retention": retention}, **spec)
    body = {"spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}
    key = Key(lab.namespace, f"{name}-checkpoints")
    with suppress(AlreadyExists):
        await lab.cluster.create(CLAIMS, {"metadata": {"name": key.name}, **body}, namespace=key.namespace)
    return key


async def volume_of(lab: CommandLab, name: str) -> Path:
    """Where `holdfast up` would have the job's folder."""
    job = await lab.cluster.get(TRAINING_JOBS, Key(lab.namespace, name))
    below = f"volumes/{lab.namespace}/{name}-checkpoints/{lab.namespace}/{name}/{job.metadata.uid}"
    return lab.kubeconfig.parent / below


def fill_volume(root: Path, *names: CheckpointName, files: Mapping[str, bytes] = MODEL) -> None:
    store = VolumeStore(root)
    for name in names:
        store.put(name, save(root, name, files), ABOUT)


async def s3_job(lab: CommandLab, server: Server, name: str, status: JSON = COMPLETED, **storage: object) -> None:
    kept = {
        "type": "s3",
        "s3Bucket": BUCKET,
        "prefix": f"{lab.namespace}/{name}",
        "region": "us-east-1",
        "endpoint": server.environ["AWS_ENDPOINT_URL"],
        **storage,
    }
    await lab.job(name, status, checkpoint={"storage": kept})


async def secret(lab: CommandLab, name: str, **content: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
    await lab.cluster.create(SECRETS, {"metadata": {"name": name}, "data": data}, namespace=lab.namespace)


def fill_bucket(server: Server, folder: Path, prefix: str, *names: CheckpointName) -> ObjectStore:
    store = ObjectStore(open_bucket(server.address(prefix), server.environ))
    for name in names:
        store.put(name, save(folder, name), ABOUT)
    return store


def below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
