"""Where a job's checkpoints lie: on a volume that all attempts share, in a folder of each attempt's own.

A worker that was cut off and comes back writes into the folder of its own attempt, where nothing counts any more.
"""

from collections.abc import Iterator
from typing import Any, Literal

from holdfast.api.durations import seconds
from holdfast.api.trainingjob import CheckpointStorage, TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.monitor import monitoring

VOLUME = "holdfast-checkpoints"
FOLDER = "/checkpoints"
TENSORBOARD = "tensorboard"


def storage(job: TrainingJob) -> CheckpointStorage | None:
    """Where checkpoints are kept; None when none are."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or not checkpoint.enabled:
        return None
    return checkpoint.storage or CheckpointStorage()


def best_by(job: TrainingJob) -> Literal["accuracy", "loss"]:
    """The metric that the best checkpoint is chosen by."""
    policy = job.spec.success_policy
    return "accuracy" if policy is not None and policy.target_accuracy is not None else "loss"


def prefix(job: TrainingJob, kept: CheckpointStorage) -> str:
    """The job's folder in the bucket or volume; with the uid, a new job of an old name finds nothing of it."""
    return kept.prefix or f"{job.metadata.namespace}/{job.metadata.name}/{job.metadata.uid}"


def is_volume(kept: CheckpointStorage) -> bool:
    """Whether checkpoints stay where they are written; those of an object store are written to the node first."""
    return kept.type in ("pvc", "nfs")


def volume(job: TrainingJob, kept: CheckpointStorage) -> dict[str, Any]:
    return {"name": VOLUME, **_source(job, kept)}


def mount(job: TrainingJob, kept: CheckpointStorage) -> dict[str, Any]:
    place = {"name": VOLUME, "mountPath": FOLDER}
    return {**place, "subPath": prefix(job, kept)} if is_volume(kept) else place


def folders(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """The variables that training and restore share. RESUME_FROM exists only if there is something to resume from."""
    own = f"{FOLDER}/attempt-{names.attempt(job)}"
    yield "CHECKPOINT_DIR", own
    yield "RESUME_FROM", f"{own}.resume"


def variables(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """What the training is told about its checkpoints; nothing when none are kept."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or not checkpoint.enabled:
        return
    yield from folders(job)
    yield "CHECKPOINT_FREQUENCY", str(checkpoint.frequency)
    if checkpoint.interval:
        yield "CHECKPOINT_INTERVAL_SECONDS", f"{seconds(checkpoint.interval):.12g}"
    watched = monitoring(job)
    if watched is not None and watched.tensorboard_enabled:
        yield "TENSORBOARD_DIR", f"{FOLDER}/{TENSORBOARD}"


def _source(job: TrainingJob, kept: CheckpointStorage) -> dict[str, Any]:
    match kept.type:
        case "pvc":
            return {"persistentVolumeClaim": {"claimName": kept.pvc_name or names.claim(job)}}
        case "nfs":
            return {"nfs": {"server": kept.nfs_server, "path": kept.nfs_path}}
        case _:
            return {"emptyDir": {}}
