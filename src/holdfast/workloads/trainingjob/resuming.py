"""Where a job goes on from that has no checkpoint of its own yet (checkpoint.resumeFrom), as its sidecar reaches it."""

import posixpath

from msgspec import Struct, structs

from holdfast.api.checkpointing import StorageType
from holdfast.api.core.container import VolumeMount
from holdfast.api.trainingjob import CheckpointStorage, PodTemplate, TrainingJob
from holdfast.workloads.trainingjob.checkpoints import VOLUME, checkpoint_storage, is_volume
from holdfast.workloads.trainingjob.stores import StoreAccess, store_access

# The whole of the volume that checkpoints are kept on: other jobs have theirs beside this one's.
WHOLE_VOLUME = "/holdfast-volume"
_STORES: dict[str, StorageType] = {"s3": "s3", "gs": "gcs", "az": "azure"}


class ResumeSource(Struct, frozen=True):
    """`access` is what the sidecar needs beyond what its own checkpoints ask for."""

    address: str
    access: StoreAccess


def resume_source(job: TrainingJob) -> ResumeSource | None:
    """Told to every attempt: one without a checkpoint of its own, because the first was lost early, needs it too."""
    kept, checkpoint = checkpoint_storage(job), job.spec.checkpoint
    if kept is None or checkpoint is None or not checkpoint.resume_from:
        return None
    written = checkpoint.resume_from
    scheme, is_url, _ = written.partition("://")
    return ResumeSource(written, _store(_STORES[scheme], kept)) if is_url else _folder(job, kept, written)


def _store(kind: StorageType, kept: CheckpointStorage) -> StoreAccess:
    """It need not be the store that the job writes to; its credentials are looked for in the same Secret."""
    return StoreAccess() if kind == kept.type else store_access(structs.replace(kept, type=kind))


def _folder(job: TrainingJob, kept: CheckpointStorage, written: str) -> ResumeSource:
    """In a volume of the user's that is mounted above it, else on the volume of the checkpoints."""
    template = job.spec.pod_template or PodTemplate()
    above = [mount for mount in template.volume_mounts if _is_below(written, mount.mount_path)]
    if above:
        nearest = max(above, key=lambda mount: len(posixpath.normpath(mount.mount_path)))
        return ResumeSource(written, StoreAccess(mounts=(_read_only(nearest),)))
    if not is_volume(kept):
        return ResumeSource(written, StoreAccess())
    whole = {"name": VOLUME, "mountPath": WHOLE_VOLUME, "readOnly": True}
    return ResumeSource(f"{WHOLE_VOLUME}/{written.strip('/')}", StoreAccess(mounts=(whole,)))


def _is_below(path: str, folder: str) -> bool:
    path, folder = posixpath.normpath(path), posixpath.normpath(folder)
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _read_only(mount: VolumeMount) -> dict[str, str | bool]:
    part = {"subPath": mount.sub_path, "subPathExpr": mount.sub_path_expr}
    written = {name: value for name, value in part.items() if value}
    return {"name": mount.name, "mountPath": mount.mount_path, **written, "readOnly": True}
