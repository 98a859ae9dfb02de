"""Makes and deletes what the status of a SpotInstanceJob says. Names are functions of status: a repeat finds the first.

Nothing that belongs to somebody else is ever touched.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.api.checkpointbackup import RunMode
from holdfast.api.meta import Key, Object
from holdfast.api.provisionedinstance import KIND as MACHINE_KIND
from holdfast.api.provisionedinstance import MACHINE_FINALIZER
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.api.spotinstancejob_status import ReplicaStatus
from holdfast.cluster.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions, Resource
from holdfast.cluster.resources import (
    CHECKPOINT_BACKUPS,
    CONFIG_MAPS,
    JOBS,
    PODS,
    PROVISIONED_INSTANCES,
    SPOT_INSTANCE_JOBS,
)
from holdfast.pods.restore.failure import has_base_images
from holdfast.pods.template import Defaults
from holdfast.runtime.children import Blocked, ensure_own_child, stop_jobs
from holdfast.runtime.controller import TerminalError
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.decide.actions import (
    Action,
    DeleteBackup,
    DeleteImagePod,
    GiveBack,
    OrderMachine,
    SaveReplica,
    StartReplica,
    StopJob,
)
from holdfast.spotinstancejob.decide.recovery import goes_back, known_checkpoints
from holdfast.spotinstancejob.forbidden import refusal
from holdfast.spotinstancejob.images import (
    CheckpointImages,
    SavedImage,
    checkpoint_backup,
    saved_containers,
    status_image,
)
from holdfast.spotinstancejob.placement import reservation_id
from holdfast.spotinstancejob.pull_secret import PullSecrets
from holdfast.spotinstancejob.replica_job import ReplicaAttempt, base_image_pod, replica_job, reports_config_map
from holdfast.spotinstancejob.snapshot import SpotInstanceJobSnapshot
from holdfast.times import parse_time

T = TypeVar("T", bound=Object)


class SpotInstanceJobApplier:
    def __init__(
        self,
        cluster: Cluster,
        pull_secrets: PullSecrets,
        *,
        defaults: Defaults,
        reports: Callable[[], str | None],
    ) -> None:
        self._cluster = cluster
        self._pull_secrets = pull_secrets
        self._defaults = defaults
        self._reports = reports

    async def apply(self, action: Action, observed: SpotInstanceJobSnapshot, session: TrackedClient) -> None:
        """Raises `Blocked` when something is in the way that may go by itself or be taken away by others."""
        try:
            await self._apply(action, observed, session)
        except Forbidden as error:
            raise Blocked(str(error)) from error
        except Invalid as error:
            if observed.status.start_time is None:
                raise TerminalError("Refused", str(error)) from error
            # It was accepted before: a policy came. What runs goes on.
            raise Blocked(str(error)) from error

    async def _apply(self, action: Action, observed: SpotInstanceJobSnapshot, session: TrackedClient) -> None:
        match action:
            case SaveReplica():
                await self._save(action, observed, session)
            case OrderMachine(replica, zone):
                body = machine_object(observed, replica, zone)
                await self._create(session, PROVISIONED_INSTANCES, body, observed.job, is_controlled=False)
            case StartReplica(replica):
                await self._start(replica, observed, session)
            case StopJob(job):
                await stop_jobs(session, (job,))
            case GiveBack(machine):
                await _delete(session, PROVISIONED_INSTANCES, machine)
            case DeleteBackup(backup):
                await _delete(session, CHECKPOINT_BACKUPS, backup)
            case DeleteImagePod(pod):
                await _delete(session, PODS, pod)

    async def _save(self, action: SaveReplica, observed: SpotInstanceJobSnapshot, session: TrackedClient) -> None:
        wanted = action.checkpoint
        body = checkpoint_backup(
            observed.job,
            replica=wanted.replica,
            number=wanted.number,
            pod=action.pod,
            mode=_mode(observed),
            now=parse_time(wanted.time),
            timeout_s=action.timeout_s,
        )
        await self._create(session, CHECKPOINT_BACKUPS, body, observed.job)

    async def _start(self, replica: ReplicaStatus, observed: SpotInstanceJobSnapshot, session: TrackedClient) -> None:
        """The Job of the attempt; before it, in container mode, what its containers were made of comes to the node."""
        checkpoint = checkpoint_to_restore(observed, replica)
        if checkpoint is None and replica.restored_from:
            return  # the registry is being asked
        if _brings_images(observed, replica):
            return
        if refused := refusal(observed.job, self._defaults.forbidden):
            raise Blocked(refused)  # forbidden since the job began: what runs goes on
        attempt = ReplicaAttempt(
            replica=replica.replica,
            attempt=replica.attempt,
            mode=_mode(observed),
            node=replica.node_name or "",
            checkpoint=checkpoint,
            is_exact=goes_back(observed.status),
            reservation=reservation_id(observed.job, replica),
            pull_secret=await self._pull_secrets.ensure(observed.job, session) if checkpoint is not None else "",
        )
        images = base_image_pod(observed.job, attempt, self._defaults)
        if images is not None and images["metadata"]["name"] not in observed.image_pods:
            # A pod that only names the base images brings them to the node.
            await self._create(session, PODS, images, observed.job)
            return
        reports = self._reports()
        if attempt.mode == "application" and reports is not None:
            await self._report_to(reports, observed.job, session)
        await self._create(session, JOBS, replica_job(observed.job, attempt, self._defaults), observed.job)

    async def _report_to(self, endpoint: str, job: SpotInstanceJob, session: TrackedClient) -> None:
        """Sidecars learn where this operator is; an operator before it may have been elsewhere."""
        body = reports_config_map(job, endpoint)
        key = Key(job.metadata.namespace, body["metadata"]["name"])
        try:
            await session.create(CONFIG_MAPS, body, namespace=key.namespace)
        except AlreadyExists:
            seen = await self._cluster.get(CONFIG_MAPS, key)
            ensure_own_child(seen, "ConfigMap", job, SPOT_INSTANCE_JOBS, noun="job")
            if seen.data != body["data"]:
                await session.patch(CONFIG_MAPS, key, {"data": body["data"]})

    async def _create(
        self,
        session: TrackedClient,
        resource: Resource[T],
        body: JSON,
        job: SpotInstanceJob,
        *,
        is_controlled: bool = True,
    ) -> None:
        key = Key(job.metadata.namespace, body["metadata"]["name"])
        try:
            await session.create(resource, body, namespace=key.namespace)
        except AlreadyExists:
            seen = await self._cluster.get(resource, key)
            if is_controlled:
                ensure_own_child(seen, resource.kind, job, SPOT_INSTANCE_JOBS, noun="job")
            else:
                _ensure_ordered_for(seen, resource.kind, job)


def _brings_images(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> bool:
    """Whether the base images are on their way to the node: until they are there, nothing else is to be done."""
    name = names.base_image_pod_name(observed.job.metadata.name, replica.replica, replica.attempt)
    pod = observed.image_pods.get(name)
    return pod is not None and (pod.is_terminating or not has_base_images(pod))


def machine_object(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, zone: str) -> dict[str, Any]:
    """A ProvisionedInstance with all that it takes to delete its machine after template and job are gone.

    Its finalizer is in the first write: from then on the object is there for as long as there may be a machine.
    """
    job, template = observed.job, observed.template
    assert template is not None  # the zone is of it
    meta, secret = job.metadata, job.spec.gcp_credentials_secret_ref
    return {
        "apiVersion": MACHINE_KIND.api_version,
        "kind": MACHINE_KIND.kind,
        "metadata": {
            "name": replica.machine,
            "namespace": meta.namespace,
            "labels": names.replica_labels(meta.name, replica.replica, replica.attempt),
            "ownerReferences": [names.owner_reference(job, controller=False)],
            "finalizers": [MACHINE_FINALIZER],
        },
        "spec": {
            "vmRef": {"name": template.metadata.name},
            "jobRef": {"name": meta.name},
            "replica": replica.replica,
            "project": template.spec.gcp.project,
            "zone": zone,
            "preemptible": template.spec.preemptible,
            "credentialsSecretRef": {"name": secret.name, "namespace": secret.namespace or meta.namespace},
        },
    }


def checkpoint_to_restore(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> CheckpointImages | None:
    """What the attempt goes on from. In container mode None, too, while the registry has not described it."""
    image = replica.restored_from
    if not image:
        return None
    if _mode(observed) == "container":
        return observed.described.get(image)
    known = (each for each in known_checkpoints(observed) if status_image(observed.job, each) == image)
    return next(known, None) or _by_name(observed.job, image)


def _by_name(job: SpotInstanceJob, image: str) -> CheckpointImages:
    """A sidecar needs no more than the name of the image."""
    name, _, digest = image.partition("@")
    (container,) = saved_containers(job, "application")
    saved = SavedImage(container=container, image=name, digest=digest)
    return CheckpointImages(number=0, replica=0, mode="application", images=(saved,))


def _mode(observed: SpotInstanceJobSnapshot) -> RunMode:
    mode = observed.status.checkpoint_mode
    assert mode is not None  # decided when the first replica was started
    return mode


def _ensure_ordered_for(seen: Object, kind: str, job: SpotInstanceJob) -> None:
    """As `ensure_own_child`, for what a job owns and does not manage."""
    what = f"{kind} {seen.metadata.name}"
    if any(owner.uid == job.metadata.uid for owner in seen.metadata.owner_references):
        if seen.metadata.deletion_timestamp:
            raise Blocked(f"waiting for {what} to be deleted before it is made again")
        return
    if any(owner.name == job.metadata.name for owner in seen.metadata.owner_references):
        raise Blocked(f"waiting for {what} of an earlier SpotInstanceJob of this name to be gone")
    raise Blocked(f"{what} is there already and was not ordered by this job: delete it, or give this job another name")


async def _delete(session: TrackedClient, resource: Resource[T], obj: T) -> None:
    """Exactly this object; one that is gone already is as good."""
    if obj.metadata.deletion_timestamp:
        return
    with suppress(NotFound, Conflict):
        await session.delete(resource, obj.metadata.key, DeleteOptions(uid=obj.metadata.uid))
