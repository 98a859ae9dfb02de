"""Where a job's checkpoints are stored: on a volume that all attempts share, in one folder for each attempt.

A worker that was cut off and comes back writes into the folder of its own attempt, which is no longer used.
"""

import posixpath
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct, structs

from holdfast.api.checkpoint import CheckpointStorage, StorageType
from holdfast.api.core.pod import VolumeMountField
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate
from holdfast.pods import checkpoints
from holdfast.pods.checkpoints import FOLDER, VOLUME, StoreAccess, registry_access, store_access
from holdfast.pods.template import Defaults
from holdfast.times import parse_duration_s
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.services import enabled_monitoring

TENSORBOARD = "tensorboard"


def checkpoint_storage(job: TrainingJob) -> CheckpointStorage | None:
    """Where checkpoints are stored; None when checkpoints are disabled."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or not checkpoint.enabled:
        return None
    return checkpoint.storage or CheckpointStorage()


def best_by(job: TrainingJob) -> Literal["accuracy", "loss"]:
    """The metric that selects the best checkpoint."""
    policy = job.spec.success_policy
    return "accuracy" if policy is not None and policy.target_accuracy is not None else "loss"


def prefix(job: TrainingJob, storage: CheckpointStorage) -> str:
    """The job's folder in the bucket or volume; with the uid, a new job finds no files of an old job of its name."""
    return storage.prefix or f"{job.metadata.namespace}/{job.metadata.name}/{job.metadata.uid}"


def is_volume(storage: CheckpointStorage) -> bool:
    """Whether training writes straight to the final volume; for an object store it writes to the node's disk first."""
    return storage.type in ("pvc", "nfs")


def volume(job: TrainingJob, storage: CheckpointStorage) -> dict[str, Any]:
    return {"name": VOLUME, **_source(job, storage)}


def mount(job: TrainingJob, storage: CheckpointStorage) -> dict[str, Any]:
    volume_mount = {"name": VOLUME, "mountPath": FOLDER}
    return {**volume_mount, "subPath": prefix(job, storage)} if is_volume(storage) else volume_mount


def folder_env(job: TrainingJob) -> Iterator[tuple[str, str]]:
    yield from checkpoints.folder_env(names.attempt(job))


def checkpoint_env(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """The training's environment variables for checkpoints; empty when checkpoints are disabled."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or not checkpoint.enabled:
        return
    yield from folder_env(job)
    yield "CHECKPOINT_FREQUENCY", str(checkpoint.frequency)
    if checkpoint.interval:
        yield "CHECKPOINT_INTERVAL_SECONDS", f"{parse_duration_s(checkpoint.interval):.12g}"
    monitoring = enabled_monitoring(job)
    if monitoring is not None and monitoring.tensorboard_enabled:
        yield "TENSORBOARD_DIR", f"{FOLDER}/{TENSORBOARD}"


def _source(job: TrainingJob, storage: CheckpointStorage) -> dict[str, Any]:
    match storage.type:
        case "pvc":
            return {"persistentVolumeClaim": {"claimName": storage.pvc_name or names.claim_name(job)}}
        case "nfs":
            return {"nfs": {"server": storage.nfs_server, "path": storage.nfs_path}}
        case _:
            return {"emptyDir": {}}


# The PersistentVolumeClaim for checkpoints, if the user names none. It has no owner: checkpoints outlive their job.


def checkpoint_pvc(job: TrainingJob, defaults: Defaults) -> dict[str, Any] | None:
    """None when no claim must be created."""
    storage = checkpoint_storage(job)
    if storage is None or storage.type != "pvc" or storage.pvc_name:
        return None
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteMany" if job.spec.num_workers > 1 else "ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size or defaults.claim_size}},
    }
    if storage.storage_class_name:
        spec["storageClassName"] = storage.storage_class_name
    metadata = {"name": names.claim_name(job), "namespace": job.metadata.namespace, "labels": names.job_labels(job)}
    return {"metadata": metadata, "spec": spec}


# The store.


def store_url(job: TrainingJob, storage: CheckpointStorage) -> str:
    """The job's folder in the store."""
    return checkpoints.store_url(storage, prefix(job, storage))


def shared_location(job: TrainingJob) -> str:
    """The location of a job's checkpoints, equal for two jobs that share a location; "" without checkpoints."""
    storage = checkpoint_storage(job)
    if storage is None:
        return ""
    path = posixpath.normpath(prefix(job, storage).strip("/"))
    match storage.type:
        case "pvc":
            return f"PersistentVolumeClaim {job.metadata.namespace}/{storage.pvc_name or names.claim_name(job)}, {path}"
        case "nfs":
            return f"nfs://{storage.nfs_server}{posixpath.normpath(storage.nfs_path or '/')}, {path}"
        case "azure":
            return f"az://{storage.azure_container}/{path} of {storage.azure_account or 'its account'}"
        case "gcs":
            return f"gs://{storage.gcs_bucket}/{path}"
        case "s3":
            at = f" at {storage.endpoint.rstrip('/')}" if storage.endpoint else ""
            return f"s3://{storage.s3_bucket}/{path}{at}"


# The source that a job without a checkpoint of its own resumes from (checkpoint.resumeFrom), as its sidecar reaches it.

# The whole checkpoint volume: the checkpoints of other jobs are beside those of this job.
WHOLE_VOLUME = "/holdfast-volume"
_STORAGE_TYPES: dict[str, StorageType] = {"s3": "s3", "gs": "gcs", "az": "azure"}


class ResumeSource(Struct, frozen=True):
    """`access` is what the sidecar needs in addition to the access for its own checkpoints."""

    address: str
    access: StoreAccess


def resume_source(job: TrainingJob) -> ResumeSource | None:
    """The same for every attempt: a later attempt has no checkpoint either if the first attempt failed early."""
    storage, checkpoint = checkpoint_storage(job), job.spec.checkpoint
    if storage is None or checkpoint is None or not checkpoint.resume_from:
        return None
    resume_from = checkpoint.resume_from
    scheme, is_url, _ = resume_from.partition("://")
    if scheme == "oci":
        return ResumeSource(resume_from, _registry_access(job))
    return (
        ResumeSource(resume_from, _access_to_other_store(_STORAGE_TYPES[scheme], storage))
        if is_url
        else _resume_folder(job, storage, resume_from)
    )


def _registry_access(job: TrainingJob) -> StoreAccess:
    template = job.spec.pod_template or PodTemplate()
    return registry_access(secret.name for secret in template.image_pull_secrets)


def _access_to_other_store(kind: StorageType, storage: CheckpointStorage) -> StoreAccess:
    """The source may be in another store than the job's own; its credentials come from the same Secret."""
    return StoreAccess() if kind == storage.type else store_access(structs.replace(storage, type=kind))


def _resume_folder(job: TrainingJob, storage: CheckpointStorage, resume_from: str) -> ResumeSource:
    """The folder is in a volume that the user mounts at or above its path, else on the checkpoint volume."""
    template = job.spec.pod_template or PodTemplate()
    containing = [mount for mount in template.volume_mounts if _is_below(resume_from, mount.mount_path)]
    if containing:
        nearest = max(containing, key=lambda mount: len(posixpath.normpath(mount.mount_path)))
        return ResumeSource(resume_from, StoreAccess(mounts=(_read_only(nearest),)))
    if not is_volume(storage):
        return ResumeSource(resume_from, StoreAccess())
    whole = {"name": VOLUME, "mountPath": WHOLE_VOLUME, "readOnly": True}
    return ResumeSource(f"{WHOLE_VOLUME}/{resume_from.strip('/')}", StoreAccess(mounts=(whole,)))


def _is_below(path: str, folder: str) -> bool:
    path, folder = posixpath.normpath(path), posixpath.normpath(folder)
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _read_only(mount: VolumeMountField) -> dict[str, str | bool]:
    part = {"subPath": mount.sub_path, "subPathExpr": mount.sub_path_expr}
    written = {name: value for name, value in part.items() if value}
    return {"name": mount.name, "mountPath": mount.mount_path, **written, "readOnly": True}
