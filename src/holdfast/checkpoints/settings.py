"""How a store is reached: its address is a URL, all else comes from the variables that a container is given."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.checkpoints.errors import BadAddress
from holdfast.checkpoints.folder import FolderStore
from holdfast.checkpoints.objects import ObjectStore
from holdfast.checkpoints.store import Store

if TYPE_CHECKING:
    from holdfast.checkpoints.remote import RemoteBucket

# Variables that obstore takes as settings under the same name. The rest of the environment is not its business.
AWS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
)
GOOGLE = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
AZURE = (
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT"),
    *("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST"),
)
RETRIES = 6
RETRY_S = 60


def open_store(address: str, environ: Mapping[str, str]) -> Store:
    """A job's store: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or an absolute path."""
    if address.startswith("/"):
        return FolderStore(Path(address))
    return ObjectStore(open_bucket(address, environ))


def open_bucket(address: str, environ: Mapping[str, str], *, retry_s: float = RETRY_S) -> "RemoteBucket":
    """Nothing is asked of the store yet."""
    scheme, bucket, prefix = _parts(address)
    # Half a second and 15 MB that a job with a volume does not need.
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    from holdfast.checkpoints.remote import RemoteBucket

    kinds = {"s3": (S3Store, AWS), "gs": (GCSStore, GOOGLE), "az": (AzureStore, AZURE)}
    kind, variables = kinds[scheme]
    config = {name.lower(): environ[name] for name in variables if environ.get(name)}
    try:
        store = kind(
            bucket,
            prefix=prefix,
            config=config,
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=60),
                "timeout": timedelta(minutes=10),
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=retry_s)},
        )
    except (BaseError, OSError, ValueError, TypeError):
        raise BadAddress(
            f"the settings for {address} can't be used: look at checkpoint.storage and at the keys of its Secret"
        ) from None
    return RemoteBucket(store, address)


def _parts(address: str) -> tuple[str, str, str]:
    scheme, _, rest = address.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    steps = prefix.split("/")
    # A login does not belong here, where it would be shown with the address.
    is_bucket = bool(bucket) and "@" not in bucket
    if scheme not in ("s3", "gs", "az") or not is_bucket or any(step in ("", ".", "..") for step in steps):
        raise BadAddress(
            f"{_without_login(address)!a} is no place for checkpoints: "
            "write s3://bucket/folder, gs://bucket/folder, az://container/folder or an absolute path"
        )
    return scheme, bucket, prefix


def _without_login(address: str) -> str:
    try:
        parts = urlsplit(address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()[:200]
    except ValueError:
        return "this address"
