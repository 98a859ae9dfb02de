"""Where the training in a pod saves its checkpoints, and how the sidecar beside it reaches stores and registries.

Each attempt has a folder of its own: a worker that was cut off and comes back writes into one that is no longer used.
Credentials come from Secrets alone, and are mounted into the sidecar alone.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.pods.template import escape_dollar

VOLUME = "holdfast-checkpoints"
FOLDER = "/checkpoints"


def folder_env(attempt: int) -> Iterator[tuple[str, str]]:
    """The variables that training and restore share. The path in RESUME_FROM exists only if there is a checkpoint."""
    own = f"{FOLDER}/attempt-{attempt}"
    yield "CHECKPOINT_DIR", own
    yield "RESUME_FROM", f"{own}.resume"


# How a container reaches an object store: the URL, and credentials that come only from a Secret.


AWS_SECRET = "aws-credentials"  # noqa: S105  # the name of a Secret, not a secret
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ALLOW_HTTP")
SERVICE_ACCOUNT_FILE = "service-account.json"
SECRET_VOLUME = "holdfast-store"  # noqa: S105
SECRET_FOLDER = "/etc/holdfast-store"  # noqa: S105


class StoreAccess(Struct, frozen=True, kw_only=True):
    """What a container needs to reach the store; without a Secret, its service account's workload identity is used."""

    env: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()

    def __add__(self, other: "StoreAccess") -> "StoreAccess":
        return StoreAccess(
            env=self.env + other.env, volumes=self.volumes + other.volumes, mounts=self.mounts + other.mounts
        )


def store_url(storage: CheckpointStorage, prefix: str) -> str:
    """A folder in the store."""
    buckets = {
        "s3": f"s3://{storage.s3_bucket}",
        "gcs": f"gs://{storage.gcs_bucket}",
        "azure": f"az://{storage.azure_container}",
    }
    return f"{buckets[storage.type]}/{prefix}"


def store_access(storage: CheckpointStorage) -> StoreAccess:
    match storage.type:
        case "s3":
            return StoreAccess(env=_s3(storage))
        case "gcs":
            return _gcs(storage)
        case "azure":
            return StoreAccess(env=_azure(storage))
        case _:
            return StoreAccess()


def _s3(storage: CheckpointStorage) -> tuple[dict[str, Any], ...]:
    secret = storage.secret_ref.name if storage.secret_ref is not None else AWS_SECRET
    settings = {
        "AWS_REGION": storage.region,
        "AWS_DEFAULT_REGION": storage.region,
        "AWS_ENDPOINT_URL": storage.endpoint,
    }
    plain = ({"name": name, "value": escape_dollar(value)} for name, value in settings.items() if value)
    return (*(_from_secret(key, secret, key) for key in AWS_KEYS), *plain)


def _gcs(storage: CheckpointStorage) -> StoreAccess:
    if storage.secret_ref is None:
        return StoreAccess()
    files = {"secretName": storage.secret_ref.name, "optional": True}
    # obstore reads an endpoint from the file that the second variable names.
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT")
    return StoreAccess(
        env=tuple({"name": name, "value": f"{SECRET_FOLDER}/{SERVICE_ACCOUNT_FILE}"} for name in names),
        volumes=({"name": SECRET_VOLUME, "secret": files},),
        mounts=({"name": SECRET_VOLUME, "mountPath": SECRET_FOLDER, "readOnly": True},),
    )


def _azure(storage: CheckpointStorage) -> tuple[dict[str, Any], ...]:
    account = ({"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": storage.azure_account},) if storage.azure_account else ()
    if storage.secret_ref is None:
        return account
    # The endpoint is for clouds other than the public one, whose URLs do not follow from the account.
    same = ("AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP")
    keys = {"AZURE_STORAGE_ACCOUNT_KEY": "AZURE_STORAGE_KEY", **{name: name for name in same}}
    return (*account, *(_from_secret(variable, storage.secret_ref.name, key) for variable, key in keys.items()))


def _from_secret(variable: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}


# How the sidecar fetches an image that the training goes on from.

PULL_SECRETS_VOLUME = "holdfast-pull-secrets"
PULL_SECRETS_FOLDER = "/var/run/secrets/holdfast-registries"


def registry_access(pull_secrets: Iterable[str]) -> StoreAccess:
    """The Secrets that the pod pulls its images with, for the sidecar alone: the operator reads none of them.

    A Secret or a key of it that is missing is left out, as the kubelet does when it pulls.
    """
    sources = [
        {"secret": {"name": name, "optional": True, "items": [{"key": key, "path": f"{number}.{file}"}]}}
        for number, name in enumerate(pull_secrets)
        for key, file in ((".dockerconfigjson", "dockerconfigjson"), ("ca.crt", "ca.crt"))
    ]
    if not sources:
        return StoreAccess()
    return StoreAccess(
        env=({"name": "HOLDFAST_PULL_SECRETS", "value": PULL_SECRETS_FOLDER},),
        volumes=({"name": PULL_SECRETS_VOLUME, "projected": {"sources": sources}},),
        mounts=({"name": PULL_SECRETS_VOLUME, "mountPath": PULL_SECRETS_FOLDER, "readOnly": True},),
    )
