"""Access to the checkpoints of a job: from this process, or through a pod that mounts their volume."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.checkpoints.errors import AccessDenied, StoreError
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName
from holdfast.checkpoints.settings import AWS, AZURE, GOOGLE, open_bucket
from holdfast.cli.checkpoints.operations import Fact, Request, Which, run_request, select_checkpoint
from holdfast.cli.checkpoints.pod import PodAccess
from holdfast.cli.checkpoints.view import BucketView, StorageView, VolumeView
from holdfast.cli.errors import UsageError
from holdfast.cli.session import Session
from holdfast.cluster.errors import Forbidden, NotFound
from holdfast.cluster.kubernetes.material import RedactedStruct
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CLAIMS, SECRETS
from holdfast.errors import HoldfastError
from holdfast.pods.checkpoints import AWS_SECRET, SERVICE_ACCOUNT_FILE, store_access
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume, prefix, store_url

# An object store is accessed with the Secret of the job, else with the credentials of this user.

# Variables with the location of the store, not with credentials: the environment may set them beside a Secret.
LOCATION_VARIABLES = {
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_AUTHORITY_HOST"),
}
VARIABLES = {*AWS, *GOOGLE, *AZURE}


class StoreCredentials(RedactedStruct, frozen=True, kw_only=True):
    """The content of the Secret; `source` tells users whose credentials are used."""

    content: Mapping[str, bytes] = {}
    source: str


async def read_credentials(cluster: Cluster, namespace: str, storage_spec: CheckpointStorage) -> StoreCredentials:
    """Read the Secret with the permissions of the user; the operator may not read Secrets."""
    secret_name = (
        storage_spec.secret_ref.name if storage_spec.secret_ref else AWS_SECRET if storage_spec.type == "s3" else ""
    )
    own = "the credentials in this command's environment were used"
    if not secret_name:
        return StoreCredentials(source=own)
    try:
        secret = await cluster.get(SECRETS, Key(namespace, secret_name))
    except (Forbidden, NotFound) as error:
        why = "may not be read by you" if isinstance(error, Forbidden) else "is not there"
        return StoreCredentials(source=f"{own}, since Secret {secret_name} {why}")
    return StoreCredentials(content=secret.data, source=f"the credentials of Secret {secret_name} were used")


def environ_for(storage_spec: CheckpointStorage, credentials: StoreCredentials) -> dict[str, str]:
    """The variables for opening the store. Removes other credentials from the environment of this process."""
    secret = _from_secret(storage_spec, credentials)
    if secret:
        # obstore reads the environment by itself: parts of two credentials must not mix.
        for name in VARIABLES - LOCATION_VARIABLES:
            os.environ.pop(name, None)
    own = {name: value for name, value in os.environ.items() if name in VARIABLES}
    return {**own, **_store_env(storage_spec), **secret}


def _store_env(storage_spec: CheckpointStorage) -> dict[str, str]:
    """The settings of the store in the job, by the variable names of its containers."""
    plain = {
        each["name"]: each["value"].replace("$$", "$") for each in store_access(storage_spec).env if "value" in each
    }
    return {name: value for name, value in plain.items() if name not in GOOGLE}


def _from_secret(storage_spec: CheckpointStorage, credentials: StoreCredentials) -> dict[str, str]:
    references = [each for each in store_access(storage_spec).env if "valueFrom" in each]
    keys = {each["name"]: each["valueFrom"]["secretKeyRef"]["key"] for each in references}
    if storage_spec.type == "gcs":
        keys["GOOGLE_SERVICE_ACCOUNT_KEY"] = SERVICE_ACCOUNT_FILE  # a file in a container, but never a file here
    return {
        name: credentials.content[key].decode(errors="replace")
        for name, key in keys.items()
        if credentials.content.get(key)
    }


RETRY_S = 15.0
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "azure": "AZURE_STORAGE_ENDPOINT"}


class NoStorage(HoldfastError):
    """There is no checkpoint storage to access."""


class AccessOptions(Struct, frozen=True, kw_only=True):
    """Options of the user that override how the storage of the job is accessed."""

    image: str = ""
    endpoint: str = ""


class CheckpointAccess(Protocol):
    @property
    def address(self) -> str:
        """The location of the checkpoints, for users."""
        ...

    def run_request(self, request: Request) -> AsyncGenerator[Fact, None]: ...

    async def download(
        self, which: Which, target: Callable[[CheckpointName], Path]
    ) -> tuple[CheckpointName, CheckpointManifest]:
        """Download a checkpoint into a new folder."""
        ...


class LocalAccess:
    """Does the work in this process, in a thread."""

    def __init__(self, view: StorageView) -> None:
        self._view = view

    @property
    def address(self) -> str:
        return self._view.store.address

    async def run_request(self, request: Request) -> AsyncGenerator[Fact, None]:
        facts = await asyncio.to_thread(lambda: run_request(self._view, request))
        while (fact := await asyncio.to_thread(lambda: next(facts, None))) is not None:
            yield fact

    async def download(
        self, which: Which, target: Callable[[CheckpointName], Path]
    ) -> tuple[CheckpointName, CheckpointManifest]:
        store = self._view.store
        name = await asyncio.to_thread(lambda: select_checkpoint(store, which))
        folder = target(name)
        return name, await asyncio.to_thread(lambda: store.get(name, folder))


@asynccontextmanager
async def open_access(session: Session, job: TrainingJob, options: AccessOptions) -> AsyncIterator[CheckpointAccess]:
    storage_spec = checkpoint_storage(job)
    if storage_spec is None:
        raise NoStorage(f"{job.metadata.key} keeps no checkpoints: its spec has no checkpoint block that is enabled")
    if not is_volume(storage_spec):
        credentials = await read_credentials(session.cluster, job.metadata.namespace, storage_spec)
        environ = environ_for(storage_spec, credentials) | _endpoint(storage_spec, options.endpoint)
        try:
            yield LocalAccess(BucketView(open_bucket(store_url(job, storage_spec), environ, retry_s=RETRY_S)))
        except AccessDenied as error:
            raise StoreError(f"{error} ({credentials.source})") from None
        return
    claim = await _claim(session, job, storage_spec)
    if session.data is None:
        yield PodAccess(session, job, storage_spec, options.image)
    else:
        yield LocalAccess(VolumeView(_local_folder(session.data, claim, job, storage_spec) / prefix(job, storage_spec)))


def _endpoint(storage_spec: CheckpointStorage, endpoint: str) -> dict[str, str]:
    if endpoint and storage_spec.type not in ENDPOINTS:
        raise UsageError("--endpoint goes with s3 and azure: for gcs, gcs_base_url in service-account.json says it")
    return {ENDPOINTS[storage_spec.type]: endpoint} if endpoint else {}


def _local_folder(data: Path, claim: Key, job: TrainingJob, storage_spec: CheckpointStorage) -> Path:
    if storage_spec.type == "nfs":
        raise NoStorage(
            f"{job.metadata.key} keeps its checkpoints on an NFS server, which `holdfast up` does not mount"
        )
    if not data.is_dir():
        raise NoStorage(f"{data} is not on this machine: run the command where `holdfast up` runs")
    # Not at the top: the process of the operator would load the local kubelet, too.
    from holdfast.local.kubelet.context import claim_folder

    return claim_folder(data, claim)


async def _claim(session: Session, job: TrainingJob, storage_spec: CheckpointStorage) -> Key:
    """The key of the claim; raises `NoStorage` if a required claim does not exist."""
    key = Key(job.metadata.namespace, storage_spec.pvc_name or names.claim_name(job))
    if storage_spec.type == "pvc":
        try:
            await session.cluster.get(CLAIMS, key)
        except NotFound:
            raise NoStorage(
                f"there is no PersistentVolumeClaim {key}, where {job.metadata.name} keeps its checkpoints: "
                "the job has not begun yet, or the claim was deleted"
            ) from None
    return key
