"""An object store as a container reaches it: its address, and credentials that come from a Secret alone."""

import posixpath
from typing import Any

from msgspec import Struct

from holdfast.api.trainingjob import CheckpointStorage, TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.checkpoints import checkpoint_storage, prefix
from holdfast.workloads.trainingjob.environment import escape_dollar

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
