"""An object store as a container reaches it: its address, and credentials that come from a Secret alone."""

import posixpath
from typing import Any

from msgspec import Struct, structs

from holdfast.api.checkpoint import CheckpointStorage, StorageType
from holdfast.api.core.pod import VolumeMount
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate
from holdfast.pods.template import escape_dollar
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.storage import VOLUME, checkpoint_storage, is_volume, prefix

AWS_SECRET = "aws-credentials"  # noqa: S105  # the name of a Secret, not one
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ALLOW_HTTP")
SERVICE_ACCOUNT_FILE = "service-account.json"
SECRET_VOLUME = "holdfast-store"  # noqa: S105
SECRET_FOLDER = "/etc/holdfast-store"  # noqa: S105


class StoreAccess(Struct, frozen=True, kw_only=True):
    """What a container needs to reach the store; without a Secret, the workload identity of its account counts."""

    env: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()


def store_url(job: TrainingJob, kept: CheckpointStorage) -> str:
    """The job's folder in the store."""
    buckets = {
        "s3": f"s3://{kept.s3_bucket}",
        "gcs": f"gs://{kept.gcs_bucket}",
        "azure": f"az://{kept.azure_container}",
    }
    return f"{buckets[kept.type]}/{prefix(job, kept)}"


def shared_place(job: TrainingJob) -> str:
    """Where a job keeps its checkpoints, the same text for two jobs with one place; "" when it keeps none."""
    kept = checkpoint_storage(job)
    if kept is None:
        return ""
    below = posixpath.normpath(prefix(job, kept).strip("/"))
    match kept.type:
        case "pvc":
            return f"PersistentVolumeClaim {job.metadata.namespace}/{kept.pvc_name or names.claim_name(job)}, {below}"
        case "nfs":
            return f"nfs://{kept.nfs_server}{posixpath.normpath(kept.nfs_path or '/')}, {below}"
        case "azure":
            return f"az://{kept.azure_container}/{below} of {kept.azure_account or 'its account'}"
        case "gcs":
            return f"gs://{kept.gcs_bucket}/{below}"
        case "s3":
            at = f" at {kept.endpoint.rstrip('/')}" if kept.endpoint else ""
            return f"s3://{kept.s3_bucket}/{below}{at}"


def store_access(kept: CheckpointStorage) -> StoreAccess:
    match kept.type:
        case "s3":
            return StoreAccess(env=_s3(kept))
        case "gcs":
            return _gcs(kept)
        case "azure":
            return StoreAccess(env=_azure(kept))
        case _:
            return StoreAccess()


def _s3(kept: CheckpointStorage) -> tuple[dict[str, Any], ...]:
    secret = kept.secret_ref.name if kept.secret_ref is not None else AWS_SECRET
    places = {"AWS_REGION": kept.region, "AWS_DEFAULT_REGION": kept.region, "AWS_ENDPOINT_URL": kept.endpoint}
    plain = ({"name": name, "value": escape_dollar(value)} for name, value in places.items() if value)
    return (*(_from_secret(key, secret, key) for key in AWS_KEYS), *plain)


def _gcs(kept: CheckpointStorage) -> StoreAccess:
    if kept.secret_ref is None:
        return StoreAccess()
    files = {"secretName": kept.secret_ref.name, "optional": True}
    # obstore finds an address in the file by the second.
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT")
    return StoreAccess(
        env=tuple({"name": name, "value": f"{SECRET_FOLDER}/{SERVICE_ACCOUNT_FILE}"} for name in names),
        volumes=({"name": SECRET_VOLUME, "secret": files},),
        mounts=({"name": SECRET_VOLUME, "mountPath": SECRET_FOLDER, "readOnly": True},),
    )


def _azure(kept: CheckpointStorage) -> tuple[dict[str, Any], ...]:
    account = ({"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": kept.azure_account},) if kept.azure_account else ()
    if kept.secret_ref is None:
        return account
    # The endpoint is for clouds other than the public one, whose addresses do not follow from the account.
    same = ("AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP")
    keys = {"AZURE_STORAGE_ACCOUNT_KEY": "AZURE_STORAGE_KEY", **{name: name for name in same}}
    return (*account, *(_from_secret(variable, kept.secret_ref.name, key) for variable, key in keys.items()))


def _from_secret(variable: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}


# Where a job goes on from that has no checkpoint of its own yet (checkpoint.resumeFrom), as its sidecar reaches it.

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
