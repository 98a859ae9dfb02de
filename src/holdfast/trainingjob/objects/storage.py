"""Where a job's checkpoints are stored: on a volume that all attempts share, in one folder for each attempt.

A worker that was cut off and comes back writes into the folder of its own attempt, which is no longer used.
"""

from collections.abc import Iterator
from typing import Any, Literal

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.template import Defaults
from holdfast.times import parse_duration_s
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.monitoring import enabled_monitoring

VOLUME = "holdfast-checkpoints"
FOLDER = "/checkpoints"
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
    """The variables that training and restore share. The path in RESUME_FROM exists only if there is a checkpoint."""
    own = f"{FOLDER}/attempt-{names.attempt(job)}"
    yield "CHECKPOINT_DIR", own
    yield "RESUME_FROM", f"{own}.resume"


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
