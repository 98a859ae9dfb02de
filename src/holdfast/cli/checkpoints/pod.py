"""A short-lived pod for checkpoints on volumes that only a pod can mount: pvc and nfs of a cluster."""

import asyncio
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import typer
from msgspec import MsgspecError

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import KIND, TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName
from holdfast.cli.checkpoints.operations import (
    EndOfStream,
    Fact,
    PruneRequest,
    Request,
    RequestFailed,
    Which,
    decode,
    encode,
)
from holdfast.cli.checkpoints.transfer import receive_checkpoint
from holdfast.cli.errors import print_error, printable
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import Session
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import PODS
from holdfast.errors import HoldfastError
from holdfast.pods.checkpoints import FOLDER
from holdfast.pods.template import SIDECAR_CONTAINER, container_security
from holdfast.trainingjob.objects import names, storage
from holdfast.trainingjob.objects.job import pod_security, scheduling

CONTAINER = "checkpoints"
# Not the label of the workers: the operator and the Services of the job would treat the pod as a worker.
LABEL = "holdfast.dev/checkpoints-of"
LONGEST_S = 6 * 3600


def address_of(job: TrainingJob, storage_spec: CheckpointStorage) -> str:
    """The location of the folder of the job, for users."""
    volume = (
        f"pvc/{storage_spec.pvc_name or names.claim_name(job)}"
        if storage_spec.type == "pvc"
        else f"{storage_spec.nfs_server}:{storage_spec.nfs_path}"
    )
    return f"{volume}/{storage.prefix(job, storage_spec)}"


def pod(
    job: TrainingJob, storage_spec: CheckpointStorage, *, name: str, image: str, command: list[str], writes: bool
) -> dict[str, Any]:
    """The pod manifest. The pod is deleted with the job, and ends by its deadline if nobody deletes it."""
    owner = {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
    }
    template = job.spec.pod_template or PodTemplate()
    scheduling_fields = {
        field: value for field, value in scheduling(job).items() if field in ("nodeSelector", "tolerations")
    }
    pull = {"imagePullSecrets": msgspec.to_builtins(template.image_pull_secrets)} if template.image_pull_secrets else {}
    return {
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {LABEL: job.metadata.name},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(job),
            "containers": [_container(job, storage_spec, image, command, writes=writes)],
            "volumes": [storage.volume(job, storage_spec)],
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_beside_workers(job)]}},
            **pull,
            **scheduling_fields,
        },
    }


def _container(
    job: TrainingJob, storage_spec: CheckpointStorage, image: str, command: list[str], *, writes: bool
) -> dict[str, Any]:
    mount = storage.mount(job, storage_spec)
    return {
        "name": CONTAINER,
        "image": image,
        "command": command,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}},
        "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount if writes else {**mount, "readOnly": True}],
    }


def _beside_workers(job: TrainingJob) -> dict[str, Any]:
    """Prefer the node of the workers: a ReadWriteOnce volume is mounted there."""
    term = {
        "labelSelector": {"matchLabels": {names.JOB_LABEL: job.metadata.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"weight": 100, "podAffinityTerm": term}


# The pod mounts the volume, and returns its results in its log.

INSIDE = ("holdfast", "checkpoints", "inside")
HAND_OUT = ("holdfast", "checkpoints", "hand-out")
START_S = 180.0
POLL_S = 0.3
# Waiting reasons of a kubelet for an image that retries will not get.
FINAL_REASONS = ("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
LAST_LINES = 3


class PodWorkFailed(HoldfastError):
    """The pod did not start, or did not finish its work."""


class PodAccess:
    def __init__(self, session: Session, job: TrainingJob, storage_spec: CheckpointStorage, image: str) -> None:
        self._session = session
        self._job = job
        self._storage_spec = storage_spec
        self._image = image

    @property
    def address(self) -> str:
        return address_of(self._job, self._storage_spec)

    async def run_request(self, request: Request) -> AsyncGenerator[Fact, None]:
        command = [*INSIDE, FOLDER, encode(request)]
        async with self._running(command, writes=isinstance(request, PruneRequest) and request.delete) as key:
            others: list[str] = []
            async with aclosing(self._lines(key)) as lines:
                async for line in lines:
                    match _parsed(line):
                        case EndOfStream():
                            return
                        case RequestFailed(message=message):
                            raise PodWorkFailed(message)
                        case None:
                            others.append(line.decode(errors="replace"))
                        case fact:
                            yield fact
            output = " / ".join(others[-LAST_LINES:]) or _end_reason(await self._session.cluster.get(PODS, key))
            raise PodWorkFailed(f"pod {key} ended before its work was done: {output}")

    async def download(
        self, which: Which, target: Callable[[CheckpointName], Path]
    ) -> tuple[CheckpointName, CheckpointManifest]:
        """Download through exec, not through the log: the node would store a copy of the log."""
        command = [*HAND_OUT, FOLDER, *options(which)]
        async with (
            self._running([*INSIDE, FOLDER], writes=False) as key,
            self._session.cluster.run_in_pod(key, command, container=CONTAINER) as attached,
        ):
            return await receive_checkpoint(attached, target)

    @asynccontextmanager
    async def _running(self, command: list[str], *, writes: bool) -> AsyncIterator[Key]:
        """A started pod; the pod is deleted after the block in any case."""
        key = Key(self._job.metadata.namespace, f"{self._job.metadata.name}-checkpoints-{secrets.token_hex(3)}")
        image = self._image or await self._sidecar_image()
        body = pod(self._job, self._storage_spec, name=key.name, image=image, command=command, writes=writes)
        await self._session.cluster.create(PODS, body, namespace=key.namespace)
        if sys.stderr.isatty():
            typer.echo(printable(f"pod {key.name} is started to look at {self.address}"), err=True)
        try:
            await self._started(key, image)
            yield key
        finally:
            await self._delete(key)

    async def _delete(self, key: Key) -> None:
        try:
            await self._session.cluster.delete(PODS, key)
        except NotFound:
            pass
        except ClusterError as error:
            print_error(f"pod {key} is left behind, and goes with its job: {error}")

    async def _started(self, key: Key, image: str) -> None:
        reason = "its state is not known"
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while (found := await self._session.cluster.get(PODS, key)).status.phase == "Pending":
                    is_final, reason = _pending_reason(found)
                    if is_final:
                        break
                    await asyncio.sleep(POLL_S)
                else:
                    return
        raise PodWorkFailed(
            f"pod {key} of image {image}, which was to look at {self.address}, did not start: {reason}; "
            "another image that has the holdfast command can be named with --image"
        )

    async def _lines(self, key: Key) -> AsyncGenerator[bytes, None]:
        rest = b""
        async with aclosing(self._session.cluster.follow_log(key, container=CONTAINER)) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
        if rest:
            yield rest

    async def _sidecar_image(self) -> str:
        """The image of the sidecar of the newest workers, which is the image of the operator."""
        job = self._job
        labels = f"{names.JOB_LABEL}={job.metadata.name}"
        listing = await self._session.cluster.list(
            find_kind("jobs").resource, namespace=job.metadata.namespace, labels=labels
        )
        newest = sorted(listing.items, key=lambda each: each.metadata.creation_timestamp, reverse=True)
        for each in newest:
            if image := _image_in(each.document):
                return image
        raise PodWorkFailed(
            f"a pod has to look at {self.address}, and {job.metadata.key} has no workers left to take its image from: "
            "name one that has the holdfast command with --image, such as the operator's own"
        )


def options(which: Which) -> list[str]:
    """The options of the hand-out command."""
    epoch = ["--epoch", str(which.epoch)] if which.epoch is not None else []
    return [*epoch, *(["--best-by", which.best_by] if which.best_by is not None else [])]


def _parsed(line: bytes) -> Fact | RequestFailed | EndOfStream | None:
    try:
        return decode(line)
    except MsgspecError:
        return None


def _pending_reason(found: Pod) -> tuple[bool, str]:
    """Whether the pod will never start, and the reason why it is pending."""
    for container in found.status.container_statuses:
        waiting = container.state.waiting
        if waiting and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
            return waiting.reason in FINAL_REASONS, f"{waiting.reason}: {waiting.message}".rstrip(": ")
    for condition in found.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return False, condition.message or condition.reason
    return False, "its volume or its image is still being brought to its node"


def _end_reason(found: Pod) -> str:
    """Why a pod without output has ended."""
    states = [container.state.terminated for container in found.status.container_statuses]
    reasons = [f"{state.reason} {state.message}".strip() for state in states if state]
    return " / ".join(reasons) or found.status.message or found.status.reason or "it said nothing"


def _image_in(document: JSON) -> str:
    spec = document["spec"]["template"]["spec"]
    containers = spec.get("initContainers", [])
    return next((each["image"] for each in containers if each["name"] == SIDECAR_CONTAINER), "")
