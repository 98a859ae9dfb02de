"""TrainingJobs with checkpoints on a cluster of this machine alone: how they are made, met with trouble, and seen."""

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from aiohttp import ClientSession

from holdfast.api.core.objects import CoreEvent
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import CheckpointStatus, TrainingJobStatus
from holdfast.checkpoints.manifest import CheckpointName
from holdfast.checkpoints.settings import open_store
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import EVENTS, PODS, SECRETS, TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.checkpoints.servers.server import AZURE_ACCOUNT, BUCKET, Server
from tests.control_plane.waiting import eventually

NAMESPACE = "default"
WITHIN_S = 240.0
# A model of the reference trainer that is trained in a moment.
SMALL = {"samples": "50", "hidden": "8", "join-timeout": str(int(WITHIN_S))}
NEVER = 1_000_000
FOREVER = {"epochs": NEVER, "additionalParams": SMALL}


async def start(box: LocalCluster, name: str, **spec: object) -> TrainingJob:
    """Of the reference trainer with one worker, unless `spec` says otherwise."""
    written: JSON = {"model": "mlp", "dataset": "synthetic", "numWorkers": 1, "gpusPerWorker": 0, **spec}
    return await box.cluster.create(TRAINING_JOBS, {"metadata": {"name": name}, "spec": written}, namespace=NAMESPACE)


async def write_secret(box: LocalCluster, name: str, content: Mapping[str, str]) -> None:
    body = {"metadata": {"name": name}, "data": encoded(content)}
    await box.cluster.create(SECRETS, body, namespace=NAMESPACE)


def encoded(content: Mapping[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}


async def make_bucket(server: Server, name: str) -> None:
    async with ClientSession() as session, session.put(f"http://127.0.0.1:{server.port}/{name}") as made:
        assert made.status == 200


def in_store(server: Server, name: str) -> tuple[JSON, dict[str, str]]:
    """checkpoint.storage of a job that keeps its checkpoints there, and what its Secret `name` holds."""
    told = server.environ
    common = {"prefix": f"team/{name}", "secretRef": {"name": name}}
    match server.scheme:
        case "s3":
            place = {
                "type": "s3",
                "s3Bucket": BUCKET,
                "region": told["AWS_REGION"],
                "endpoint": told["AWS_ENDPOINT_URL"],
            }
            content = {key: told[key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        case "gs":
            place = {"type": "gcs", "gcsBucket": BUCKET}
            content = {"service-account.json": Path(told["GOOGLE_SERVICE_ACCOUNT"]).read_text()}
        case _:
            place = {"type": "azure", "azureContainer": BUCKET, "azureAccount": AZURE_ACCOUNT}
            keys = {
                "AZURE_STORAGE_KEY": "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ENDPOINT": "AZURE_STORAGE_ENDPOINT",
            }
            content = {key: told[variable] for key, variable in keys.items()}
    return {**common, **place}, content


async def status(box: LocalCluster, name: str) -> TrainingJobStatus:
    job = await box.cluster.get(TRAINING_JOBS, Key(NAMESPACE, name))
    return job.status or TrainingJobStatus()


async def until(
    box: LocalCluster, name: str, holds: Callable[[TrainingJobStatus], object], what: str
) -> TrainingJobStatus:
    def enough(seen: TrainingJobStatus) -> bool:
        assert seen.state != "Failed", seen.failure_reason
        return bool(holds(seen))

    return await eventually(lambda: status(box, name), enough, what=f"{name}: {what}", within_s=WITHIN_S)


def checkpoint(seen: TrainingJobStatus) -> CheckpointStatus:
    return seen.checkpoint or CheckpointStatus()


async def change(box: LocalCluster, name: str, **spec: object) -> None:
    await box.cluster.patch(TRAINING_JOBS, Key(NAMESPACE, name), {"spec": spec})


async def stopped(box: LocalCluster, name: str) -> None:
    """The workers of the suspended job have ended, and what they saved is kept."""

    async def look() -> list[str]:
        pods = (await box.cluster.list(PODS, namespace=NAMESPACE, labels=f"training-job={name}")).items
        return [pod.metadata.name for pod in pods if not pod.is_finished]

    await until(box, name, lambda seen: seen.state == "Suspended", "is suspended")
    await eventually(look, lambda left: not left, what=f"no worker of {name} runs", within_s=WITHIN_S)


async def told(box: LocalCluster, name: str, reason: str, words: str = "") -> CoreEvent:
    """The warning about the job that gives that reason and has those words in its message."""

    async def look() -> list[CoreEvent]:
        events = (await box.cluster.list(EVENTS, namespace=NAMESPACE)).items
        return [event for event in events if event.metadata.name.startswith(f"{name}.")]

    def fits(event: CoreEvent) -> bool:
        return (event.type, event.reason) == ("Warning", reason) and words in event.message

    seen = await eventually(look, lambda them: any(map(fits, them)), what=f"{reason} about {name}", within_s=WITHIN_S)
    return next(filter(fits, seen))


async def kept(address: str, environ: Mapping[str, str]) -> list[CheckpointName]:
    """The checkpoints of a job's store that a restart may go on from, newest first."""

    def look() -> list[CheckpointName]:
        store = open_store(address, environ)
        return sorted((name for name in store.names(NEVER) if store.manifest(name) is not None), reverse=True)

    return await asyncio.to_thread(look)


async def until_kept(address: str, environ: Mapping[str, str], many: int = 1) -> list[CheckpointName]:
    return await eventually(
        lambda: kept(address, environ), lambda found: len(found) >= many, what=f"{address} is filled", within_s=WITHIN_S
    )


async def trainer(data: Path, name: str, index: int = 0) -> int:
    """The process that trains as that worker of the job, in the cluster that keeps everything in `data`."""
    look = partial(asyncio.to_thread, lambda: list(_trainers(data, name, index)))
    return (await eventually(look, bool, what=f"{name} trains", within_s=WITHIN_S))[0]


def _trainers(data: Path, name: str, index: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        wanted = {f"HOLDFAST_JOB={name}".encode(), f"HOLDFAST_INDEX={index}".encode()}
        is_ours = wanted <= set(environ.split(b"\0")) and bytes(data) in environ
        if is_ours and b"-m\0holdfast.trainer" in command:
            yield int(folder.name)


async def saved_by(pid: int) -> Path:
    """The first checkpoint that the process has saved, on its own machine."""
    variables = (await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes)).decode().split("\0")
    (place,) = [Path(each.partition("=")[2]) for each in variables if each.startswith("CHECKPOINT_DIR=")]
    look = partial(asyncio.to_thread, lambda: sorted(place.glob("checkpoint-epoch-*")))
    return (await eventually(look, bool, what=f"there is a checkpoint in {place}", within_s=WITHIN_S))[0]
