"""Where a job's checkpoints can be worked on: from this process, or only in a pod that mounts their volume."""

import asyncio
import base64
import binascii
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.checkpoints.errors import AccessDenied, StoreError
from holdfast.checkpoints.manifest import CheckpointName, Manifest
from holdfast.checkpoints.settings import AWS, AZURE, GOOGLE, open_bucket
from holdfast.cli.checkpoints.messages import Fact, Request, Which
from holdfast.cli.checkpoints.operations import run_request, select_checkpoint
from holdfast.cli.checkpoints.pod import PodAccess
from holdfast.cli.checkpoints.view import BucketView, StorageView, VolumeView
from holdfast.cli.session import Session, UsageError
from holdfast.cluster.errors import Forbidden, NotFound
from holdfast.cluster.kubernetes.material import RedactedStruct
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import CLAIMS
from holdfast.errors import HoldfastError
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.object_store import AWS_SECRET, SERVICE_ACCOUNT_FILE, store_access, store_url
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume, prefix

# How an object store is reached from where the command runs: with the job's own Secret, else as this user.

# Where the store is, as opposed to who asks: that may be said here, whoever the Secret says that we are.
PLACES = {
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_AUTHORITY_HOST"),
}
VARIABLES = {*AWS, *GOOGLE, *AZURE}


class Secret(Object, frozen=True, kw_only=True):
    data: dict[str, str] = {}

    def __repr__(self) -> str:
        return "Secret(…)"


SECRETS = Resource(group="", version="v1", kind="Secret", plural="secrets", model=Secret)


class Credentials(RedactedStruct, frozen=True, kw_only=True):
    """What the Secret holds; `source` says to people whose credentials are used."""

    content: Mapping[str, bytes] = {}
    source: str


async def read_credentials(cluster: Cluster, namespace: str, kept: CheckpointStorage) -> Credentials:
    """With the user's own rights; the operator's do not reach Secrets."""
    named = kept.secret_ref.name if kept.secret_ref else AWS_SECRET if kept.type == "s3" else ""
    own = "the credentials in this command's environment were used"
    if not named:
        return Credentials(source=own)
    try:
        secret = await cluster.get(SECRETS, Key(namespace, named))
    except (Forbidden, NotFound) as error:
        why = "may not be read by you" if isinstance(error, Forbidden) else "is not there"
        return Credentials(source=f"{own}, since Secret {named} {why}")
    return Credentials(content=_decoded(secret.data), source=f"the credentials of Secret {named} were used")


def environ_for(kept: CheckpointStorage, found: Credentials) -> dict[str, str]:
    """The variables to open the store with. From then on this process has no other login."""
    secret = _from_secret(kept, found)
    if secret:
        # obstore looks at the process's variables by itself: two halves of two logins must not meet.
        for name in VARIABLES - PLACES:
            os.environ.pop(name, None)
    own = {name: value for name, value in os.environ.items() if name in VARIABLES}
    return {**own, **_store_env(kept), **secret}


def _store_env(kept: CheckpointStorage) -> dict[str, str]:
    """What the job says of the store, by the names that a container is told."""
    plain = {each["name"]: each["value"].replace("$$", "$") for each in store_access(kept).env if "value" in each}
    return {name: value for name, value in plain.items() if name not in GOOGLE}


def _from_secret(kept: CheckpointStorage, found: Credentials) -> dict[str, str]:
    referred = [each for each in store_access(kept).env if "valueFrom" in each]
    keys = {each["name"]: each["valueFrom"]["secretKeyRef"]["key"] for each in referred}
    if kept.type == "gcs":
        keys["GOOGLE_SERVICE_ACCOUNT_KEY"] = SERVICE_ACCOUNT_FILE  # a file in a container, and never one here
    return {name: found.content[key].decode(errors="replace") for name, key in keys.items() if found.content.get(key)}


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    decoded = {}
    for key, text in data.items():
        with contextlib.suppress(binascii.Error, ValueError):
            decoded[key] = base64.b64decode(text, validate=True)
    return decoded


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
    from holdfast.local.kubelet.context import claim_folder

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
