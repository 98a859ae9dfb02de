"""Bootstrap tokens: the right of one machine to join, for some minutes.

The token's id is a function of the ProvisionedInstance's uid, so that any later operator finds and deletes the token.
Its secret is derived as well: a `kubeadm join` that outlives the operator goes on with a token that is still right.
"""

import base64
import hashlib
import string
from datetime import datetime, timedelta

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import SECRETS
from holdfast.times import format_time

NAMESPACE = "kube-system"
LIFETIME = timedelta(minutes=20)
GROUP = "system:bootstrappers:kubeadm:default-node-token"  # kubeadm's own, which may join as a node and do no more
ID_LENGTH, SECRET_LENGTH = 6, 16

_ALPHABET = string.digits + string.ascii_lowercase


class BootstrapToken(Struct, frozen=True):
    """Its secret is never printed."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        return f"{self.id}.{self.secret}"

    @property
    def secret_key(self) -> Key:
        return Key(NAMESPACE, secret_name(self.id))

    def __repr__(self) -> str:
        return f"BootstrapToken({self.id}.…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("id", self.id)]


def token_id(uid: str) -> str:
    """Of the machine's token; it is no secret."""
    return _in_alphabet(hashlib.sha256(f"holdfast bootstrap token of {uid}".encode()).digest(), ID_LENGTH)


def token_of(uid: str, derived: bytes) -> BootstrapToken:
    """The machine's token; `derived` is 32 bytes that only the operator can derive for this uid."""
    return BootstrapToken(token_id(uid), _in_alphabet(derived, SECRET_LENGTH))


def secret_name(identifier: str) -> str:
    """As Kubernetes wants it: another name is no token."""
    return f"bootstrap-token-{identifier}"


def token_secret(token: BootstrapToken, *, machine: str, expires_at: datetime) -> JSON:
    """The Secret that makes it a token."""
    fields = {
        "token-id": token.id,
        "token-secret": token.secret,
        "description": f"For the machine {machine} of holdfast to join the cluster; deleted when it has.",
        "expiration": format_time(expires_at),
        "usage-bootstrap-signing": "true",
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": GROUP,
    }
    return {
        "metadata": {"name": token.secret_key.name, "labels": {"app.kubernetes.io/managed-by": "holdfast"}},
        "type": "bootstrap.kubernetes.io/token",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in fields.items()},
    }


async def mint(cluster: Cluster, token: BootstrapToken, *, machine: str, now: datetime) -> None:
    """Make the token, or give it its whole lifetime anew; the operator may not read Secrets there."""
    secret = token_secret(token, machine=machine, expires_at=now + LIFETIME)
    try:
        await cluster.create(SECRETS, secret, namespace=NAMESPACE)
    except AlreadyExists:
        await revoke(cluster, token.id)
        await cluster.create(SECRETS, secret, namespace=NAMESPACE)


async def revoke(cluster: Cluster, identifier: str) -> None:
    try:
        await cluster.delete(SECRETS, Key(NAMESPACE, secret_name(identifier)))
    except NotFound:
        return


def _in_alphabet(digest: bytes, length: int) -> str:
    """The digest as digits and lower-case letters, cut to `length`."""
    rest, letters = int.from_bytes(digest), ""
    while len(letters) < length:
        rest, digit = divmod(rest, len(_ALPHABET))
        letters += _ALPHABET[digit]
    return letters
