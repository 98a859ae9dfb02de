"""Where a job's checkpoints can be worked on: from this process, or only in a pod that mounts their volume."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.api.trainingjob import CheckpointStorage, TrainingJob
from holdfast.checkpoints.errors import AccessDenied, StoreError
from holdfast.checkpoints.manifest import Manifest
from holdfast.checkpoints.names import CheckpointName
from holdfast.checkpoints.settings import open_bucket
from holdfast.cli.checkpoints.credentials import environ_for, read_credentials
from holdfast.cli.checkpoints.facts import Fact, Request, Which
from holdfast.cli.checkpoints.place import BucketView, StorageView, VolumeView
from holdfast.cli.checkpoints.remote import PodAccess
from holdfast.cli.checkpoints.work import run_request, select_checkpoint
from holdfast.cli.failing import UsageError
from holdfast.cli.target import Session
from holdfast.cluster.errors import NotFound
from holdfast.cluster.resources import CLAIMS
from holdfast.errors import HoldfastError
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.checkpoints import checkpoint_storage, is_volume, prefix
from holdfast.workloads.trainingjob.stores import store_url

RETRY_S = 15.0
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "azure": "AZURE_STORAGE_ENDPOINT"}


class NoStorage(HoldfastError):
    """There is no place to look at."""


class AccessOptions(Struct, frozen=True, kw_only=True):
    """How the user wants a place to be reached, where that is not what the job says."""

    image: str = ""
    endpoint: str = ""


class CheckpointAccess(Protocol):
    @property
    def address(self) -> str:
        """Where the job's checkpoints are, for people."""
        ...

    def run_request(self, request: Request) -> AsyncGenerator[Fact, None]: ...

    async def download(self, which: Which, target: Callable[[CheckpointName], Path]) -> tuple[CheckpointName, Manifest]:
        """Put a checkpoint into a folder that is not there yet."""
        ...


class LocalAccess:
    """The work is done by this process, in a thread."""

    def __init__(self, place: StorageView) -> None:
        self._place = place

    @property
    def address(self) -> str:
        return self._place.store.address

    async def run_request(self, request: Request) -> AsyncGenerator[Fact, None]:
        facts = await asyncio.to_thread(lambda: run_request(self._place, request))
        while (fact := await asyncio.to_thread(lambda: next(facts, None))) is not None:
            yield fact

    async def download(self, which: Which, target: Callable[[CheckpointName], Path]) -> tuple[CheckpointName, Manifest]:
        store = self._place.store
        name = await asyncio.to_thread(lambda: select_checkpoint(store, which))
        folder = target(name)
        return name, await asyncio.to_thread(lambda: store.get(name, folder))


@asynccontextmanager
async def open_access(session: Session, job: TrainingJob, reach: AccessOptions) -> AsyncIterator[CheckpointAccess]:
    kept = checkpoint_storage(job)
    if kept is None:
        raise NoStorage(f"{job.metadata.key} keeps no checkpoints: its spec has no checkpoint block that is enabled")
    if not is_volume(kept):
        credentials = await read_credentials(session.cluster, job.metadata.namespace, kept)
        environ = environ_for(kept, credentials) | _endpoint(kept, reach.endpoint)
        try:
            yield LocalAccess(BucketView(open_bucket(store_url(job, kept), environ, retry_s=RETRY_S)))
        except AccessDenied as error:
            raise StoreError(f"{error} ({credentials.source})") from None
        return
    claim = await _claim(session, job, kept)
    if session.data is None:
        yield PodAccess(session, job, kept, reach.image)
    else:
        yield LocalAccess(VolumeView(_local_folder(session.data, claim, job, kept) / prefix(job, kept)))


def _endpoint(kept: CheckpointStorage, endpoint: str) -> dict[str, str]:
    if endpoint and kept.type not in ENDPOINTS:
        raise UsageError("--endpoint goes with s3 and azure: for gcs, gcs_base_url in service-account.json says it")
    return {ENDPOINTS[kept.type]: endpoint} if endpoint else {}


def _local_folder(data: Path, claim: Key, job: TrainingJob, kept: CheckpointStorage) -> Path:
    if kept.type == "nfs":
        raise NoStorage(
            f"{job.metadata.key} keeps its checkpoints on an NFS server, which `holdfast up` does not mount"
        )
    if not data.is_dir():
        raise NoStorage(f"{data} is not on this machine: run the command where `holdfast up` runs")
    # Not at the top: a whole machine, which the operator's process would load, too.
    from holdfast.machine.host import claim_folder

    return claim_folder(data, claim)


async def _claim(session: Session, job: TrainingJob, kept: CheckpointStorage) -> Key:
    """The claim, which must be there if there is to be one."""
    key = Key(job.metadata.namespace, kept.pvc_name or names.claim_name(job))
    if kept.type == "pvc":
        try:
            await session.cluster.get(CLAIMS, key)
        except NotFound:
            raise NoStorage(
                f"there is no PersistentVolumeClaim {key}, where {job.metadata.name} keeps its checkpoints: "
                "the job has not begun yet, or the claim was deleted"
            ) from None
    return key
