"""How an object store is reached from where the command runs: with the job's own Secret, else as this user."""

import base64
import binascii
import contextlib
import os
from collections.abc import Mapping

from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import CheckpointStorage
from holdfast.checkpoints.settings import AWS, AZURE, GOOGLE
from holdfast.cluster.errors import Forbidden, NotFound
from holdfast.cluster.kubernetes.private import RedactedStruct
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.workloads.trainingjob.stores import AWS_SECRET, SERVICE_ACCOUNT_FILE, store_access

# Where the store is, as opposed to who asks: that may be said here, whoever the Secret says that we are.
PLACES = {
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_AUTHORITY_HOST"),
}
VARIABLES = {*AWS, *GOOGLE, *AZURE}


class Secret(Object, frozen=True, kw_only=True):
    data: dict[str, str] = {}

    def __repr__(self) -> str:
        return "Secret(…)"


SECRETS = Resource(group="", version="v1", kind="Secret", plural="secrets", model=Secret)


class Credentials(RedactedStruct, frozen=True, kw_only=True):
    """What the Secret holds; `source` says to people whose credentials are used."""

    content: Mapping[str, bytes] = {}
    source: str


async def read_credentials(cluster: Cluster, namespace: str, kept: CheckpointStorage) -> Credentials:
    """With the user's own rights; the operator's do not reach Secrets."""
    named = kept.secret_ref.name if kept.secret_ref else AWS_SECRET if kept.type == "s3" else ""
    own = "the credentials in this command's environment were used"
    if not named:
        return Credentials(source=own)
    try:
        secret = await cluster.get(SECRETS, Key(namespace, named))
    except (Forbidden, NotFound) as error:
        why = "may not be read by you" if isinstance(error, Forbidden) else "is not there"
        return Credentials(source=f"{own}, since Secret {named} {why}")
    return Credentials(content=_decoded(secret.data), source=f"the credentials of Secret {named} were used")


def environ_for(kept: CheckpointStorage, found: Credentials) -> dict[str, str]:
    """The variables to open the store with. From then on this process has no other login."""
    secret = _from_secret(kept, found)
    if secret:
        # obstore looks at the process's variables by itself: two halves of two logins must not meet.
        for name in VARIABLES - PLACES:
            os.environ.pop(name, None)
    own = {name: value for name, value in os.environ.items() if name in VARIABLES}
    return {**own, **_store_env(kept), **secret}


def _store_env(kept: CheckpointStorage) -> dict[str, str]:
    """What the job says of the store, by the names that a container is told."""
    plain = {each["name"]: each["value"].replace("$$", "$") for each in store_access(kept).env if "value" in each}
    return {name: value for name, value in plain.items() if name not in GOOGLE}


def _from_secret(kept: CheckpointStorage, found: Credentials) -> dict[str, str]:
    referred = [each for each in store_access(kept).env if "valueFrom" in each]
    keys = {each["name"]: each["valueFrom"]["secretKeyRef"]["key"] for each in referred}
    if kept.type == "gcs":
        keys["GOOGLE_SERVICE_ACCOUNT_KEY"] = SERVICE_ACCOUNT_FILE  # a file in a container, and never one here
    return {name: found.content[key].decode(errors="replace") for name, key in keys.items() if found.content.get(key)}


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    decoded = {}
    for key, text in data.items():
        with contextlib.suppress(binascii.Error, ValueError):
            decoded[key] = base64.b64decode(text, validate=True)
    return decoded
