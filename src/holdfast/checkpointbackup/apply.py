"""Carries out what was decided for a CheckpointBackup: the label of the node, the pod's details, the pod's deletion."""

from collections.abc import Collection
from contextlib import suppress

from msgspec import structs

from holdfast.api.backup_runs import WantedBackup
from holdfast.api.checkpointbackup import NODE_LABEL, CheckpointBackup
from holdfast.api.meta import Key, OwnerReference
from holdfast.api.spotinstancejob import REPLICA_LABEL
from holdfast.checkpointbackup.mode import BackedUpPod
from holdfast.checkpointbackup.snapshot import CheckpointBackupSnapshot
from holdfast.checkpoints.images.reference import registry_address
from holdfast.checkpoints.images.target import target_image
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.cluster.protocol import Cluster, DeleteOptions, Resource
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.times import parse_time

BACKED_UP_PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=BackedUpPod)
# What the replicas of a SpotInstanceJob and the workers of a TrainingJob carry; the image of a backup tells them.
REPLICA_LABELS = (REPLICA_LABEL, "batch.kubernetes.io/job-completion-index")
ATTEMPT_LABEL = "holdfast.dev/attempt"


async def with_details(observed: CheckpointBackupSnapshot, cluster: Cluster) -> CheckpointBackupSnapshot:
    """The pod as the API server has it now, with what the cache leaves out."""
    try:
        details = await cluster.get(BACKED_UP_PODS, Key(observed.backup.metadata.namespace, observed.pod_name))
    except NotFound:
        return structs.replace(observed, pod=None)
    is_same = observed.pod is not None and details.metadata.uid == observed.pod.metadata.uid
    return structs.replace(observed, details=details if is_same else None)


async def label_node(session: TrackedClient, backup: CheckpointBackup, node: str) -> CheckpointBackup:
    """Agents watch the backups of their node by this label, so it comes before the status that they act on."""
    if backup.metadata.labels.get(NODE_LABEL) == node:
        return backup
    guard = {"resourceVersion": backup.metadata.resource_version, "labels": {NODE_LABEL: node}}
    return await session.patch(CHECKPOINT_BACKUPS, backup.metadata.key, {"metadata": guard})


async def delete_saved_pod(session: TrackedClient, observed: CheckpointBackupSnapshot) -> None:
    """Never a later pod of the same name; one that is gone already is as good."""
    pod = observed.pod_of_run
    if pod is None or pod.is_terminating:
        return
    with suppress(NotFound, Conflict):
        await session.delete(PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))


def wanted_backup(observed: CheckpointBackupSnapshot, plain_http: Collection[str]) -> WantedBackup:
    """What the sidecar is to push. Raises an `ImageError` if no image can be named by the spec."""
    backup, status = observed.backup, observed.status
    container, meta = observed.training_container, backup.metadata
    address = registry_address(backup.spec.registry.url, plain_http)
    began = parse_time(status.start_time or meta.creation_timestamp)
    image = target_image(backup, container, status.run, began)
    owner = owner_of(backup)
    labels = observed.pod.metadata.labels if observed.pod is not None else {}
    attempt = labels.get(ATTEMPT_LABEL, "")
    images = observed.pod.status.container_statuses if observed.pod is not None else ()
    return WantedBackup(
        namespace=meta.namespace,
        backup=meta.name,
        uid=meta.uid,
        run=status.run,
        container=container,
        registry_url=backup.spec.registry.url,
        repository=image.repository,
        tag=image.tag,
        plain_http=address.origin.startswith("http://"),
        compression=backup.spec.compression,
        owner_uid=owner.uid,
        owner_kind=owner.kind,
        owner_name=owner.name,
        replica=next((labels[name] for name in REPLICA_LABELS if labels.get(name)), ""),
        attempt=int(attempt) if attempt.isdecimal() else None,
        pod_name=observed.pod_name,
        pod_uid=status.pod_uid,
        base_image=next((each.image for each in images if each.name == container), ""),
    )


def owner_of(backup: CheckpointBackup) -> OwnerReference:
    """Whose images the runs make: the object that manages the backup, else the backup itself."""
    meta = backup.metadata
    return meta.controller or OwnerReference(
        api_version=CHECKPOINT_BACKUPS.api_version, kind=CHECKPOINT_BACKUPS.kind, name=meta.name, uid=meta.uid
    )
