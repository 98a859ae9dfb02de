"""Opens a store: the address is a URL, all other settings come from environment variables of the container."""

import contextlib
import ipaddress
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.checkpoints.errors import InvalidStoreUrl
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.volume_store import VolumeStore

if TYPE_CHECKING:
    from holdfast.checkpoints.obstore_bucket import ObstoreBucket

# Variables that obstore takes as settings under the same name. The rest of the environment is not passed on.
AWS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_ALLOW_HTTP"),
)
GOOGLE = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
AZURE = (
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT"),
    *("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST", "AZURE_ALLOW_HTTP"),
)
# Allows to send credentials unencrypted.
ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
# A request that is signed with a key does not reveal the key. The credentials in SENT are sent themselves.
KEYS = {"s3": "AWS_ACCESS_KEY_ID", "az": "AZURE_STORAGE_ACCOUNT_KEY"}
SENT = ("AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE")
LARGEST_KEY_FILE = 64 << 10
RETRIES = 6
RETRY_S = 60


def open_store(address: str, environ: Mapping[str, str]) -> CheckpointStore:
    """A job's store: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or an absolute path."""
    if address.startswith("/"):
        return VolumeStore(Path(address))
    return ObjectStore(open_bucket(address, environ))


def open_bucket(address: str, environ: Mapping[str, str], *, retry_s: float = RETRY_S) -> "ObstoreBucket":
    """Open a bucket without a request to the store."""
    scheme, bucket, prefix = _parse_url(address)
    # The import costs half a second and 15 MB, which a job with a volume does not need.
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    from holdfast.checkpoints.obstore_bucket import ObstoreBucket

    kinds = {"s3": (S3Store, AWS), "gs": (GCSStore, GOOGLE), "az": (AzureStore, AZURE)}
    kind, variables = kinds[scheme]
    config = {name.lower(): environ[name] for name in variables if environ.get(name) and name not in ALLOW_HTTP}
    allow_http = is_unencrypted(address, environ)
    if allow_http:
        _check_http_allowed(scheme, environ)
    try:
        store = kind(
            bucket,
            prefix=prefix,
            config=config,
            client_options={
                "allow_http": allow_http,
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=60),
                "timeout": timedelta(minutes=10),
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=retry_s)},
        )
    except (BaseError, OSError, ValueError, TypeError):
        raise InvalidStoreUrl(
            f"the settings for {address} can't be used: look at checkpoint.storage and at the keys of its Secret"
        ) from None
    return ObstoreBucket(store, address)


def is_unencrypted(address: str, environ: Mapping[str, str]) -> bool:
    """Whether the store is reached by http://, which has to be configured explicitly."""
    return _endpoint(address.partition("://")[0], environ).lower().startswith("http://")


def _check_http_allowed(scheme: str, environ: Mapping[str, str]) -> None:
    """Raise InvalidStoreUrl if credentials would be sent unencrypted, and the settings do not allow that."""
    endpoint = _endpoint(scheme, environ)
    if _is_loopback(urlsplit(endpoint).hostname or ""):
        return
    if scheme == "gs":
        is_sent = not _key_file(environ).get("disable_oauth")
        hint = 'or write "disable_oauth": true into service-account.json if the server asks for no login'
    else:
        is_sent = not environ.get(KEYS[scheme]) or any(environ.get(name) for name in SENT)
        variable = ALLOW_HTTP[scheme == "az"]
        is_sent = is_sent and environ.get(variable, "").lower() != "true"
        hint = f'or add {variable}: "true" to the Secret of secretRef if everybody on that network may have them'
    if is_sent:
        raise InvalidStoreUrl(
            f"temporary credentials would be sent unencrypted to {endpoint[:200]!a}: use https://, {hint}"
        )


def _endpoint(scheme: str, environ: Mapping[str, str]) -> str:
    if scheme == "gs":
        base = _key_file(environ).get("gcs_base_url")
        return base if isinstance(base, str) else ""
    return environ.get({"s3": "AWS_ENDPOINT_URL", "az": "AZURE_STORAGE_ENDPOINT"}.get(scheme, ""), "")


def _key_file(environ: Mapping[str, str]) -> dict[str, object]:
    """The content of service-account.json; empty without a readable file."""
    text = environ.get("GOOGLE_SERVICE_ACCOUNT_KEY", "")
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if path := environ.get("GOOGLE_SERVICE_ACCOUNT") or environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            with Path(path).open(encoding="utf-8") as opened:
                text = opened.read(LARGEST_KEY_FILE)
        content = json.loads(text or "{}")
        return content if isinstance(content, dict) else {}
    return {}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parse_url(address: str) -> tuple[str, str, str]:
    scheme, _, rest = address.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    parts = prefix.split("/")
    # A login does not belong into the address, which is shown in messages.
    is_bucket = bool(bucket) and "@" not in bucket
    if scheme not in ("s3", "gs", "az") or not is_bucket or any(part in ("", ".", "..") for part in parts):
        raise InvalidStoreUrl(
            f"{_redacted(address)!a} is no place for checkpoints: "
            "write s3://bucket/folder, gs://bucket/folder, az://container/folder or an absolute path"
        )
    return scheme, bucket, prefix


def _redacted(address: str) -> str:
    try:
        parts = urlsplit(address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()[:200]
    except ValueError:
        return "this address"
