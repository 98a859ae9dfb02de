"""The SSH keys of machines: users' own, or one that is derived for each machine, so that none is stored.

All are derived from one root key, a Secret in the operator's namespace. Should it get lost, nobody can log in to the
machines that run: they go on, and those that have not joined yet are given back when their time is over.
"""

import base64
from collections.abc import Callable

import asyncssh
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from holdfast.api.core.objects import Secret
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import SECRETS
from holdfast.machines.joining import CannotJoin

ROOT_KEY_SECRET = "holdfast-machine-keys"  # noqa: S105  # its name
ROOT_KEY_FIELD = "root-key"
ROOT_KEY_BYTES = 32
PRIVATE_KEY_FIELD = "ssh-privatekey"  # as in Secrets of the type kubernetes.io/ssh-auth

_SSH, _TOKEN = b"holdfast machine ssh ", b"holdfast machine bootstrap token "


def machine_key(root_key: bytes, uid: str) -> asyncssh.SSHKey:
    """The Ed25519 key of the machine with that ProvisionedInstance."""
    key = Ed25519PrivateKey.from_private_bytes(_derive(root_key, _SSH + uid.encode()))
    return asyncssh.import_private_key(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


def token_bytes(root_key: bytes, uid: str) -> bytes:
    """What the secret of the machine's bootstrap token is made of."""
    return _derive(root_key, _TOKEN + uid.encode())


def public_line(key: asyncssh.SSHKey) -> str:
    """The public half as one line of authorized_keys, without a comment."""
    algorithm, content = key.export_public_key("openssh").decode().split()[:2]
    return f"{algorithm} {content}"


def user_key(secret: Secret) -> asyncssh.SSHKey:
    """The private key in a user's Secret."""
    name, content = secret.metadata.key, secret.data.get(PRIVATE_KEY_FIELD)
    if not content:
        raise CannotJoin(
            "InvalidSSHKey", f"Secret {name} of ssh.keySecretRef has no {PRIVATE_KEY_FIELD}: put the private key there"
        )
    try:
        return asyncssh.import_private_key(content)
    except asyncssh.KeyImportError:
        raise CannotJoin(
            "InvalidSSHKey",
            f"{PRIVATE_KEY_FIELD} of Secret {name} of ssh.keySecretRef is no private key that can be read without a "
            "passphrase: write one as `ssh-keygen -N ''` does",
        ) from None


class RootKey:
    """Read once, and made where there is none; `random` returns that many random bytes."""

    def __init__(self, cluster: Cluster, namespace: str, random: Callable[[int], bytes]) -> None:
        self._cluster = cluster
        self._name = Key(namespace, ROOT_KEY_SECRET)
        self._random = random
        self._key = b""

    async def get(self) -> bytes:
        if not self._key:
            self._key = await self._read()
        return self._key

    async def _read(self) -> bytes:
        try:
            secret = await self._cluster.get(SECRETS, self._name)
        except NotFound:
            secret = await self._create()
        key = secret.data.get(ROOT_KEY_FIELD, b"")
        if len(key) != ROOT_KEY_BYTES:
            raise CannotJoin(
                "InvalidRootKey",
                f"{ROOT_KEY_FIELD} of Secret {self._name} has {len(key)} bytes where {ROOT_KEY_BYTES} are needed: "
                "delete the Secret, and it is made anew",
            )
        return key

    async def _create(self) -> Secret:
        body = {
            "metadata": {"name": self._name.name, "labels": {"app.kubernetes.io/name": "holdfast"}},
            "data": {ROOT_KEY_FIELD: base64.b64encode(self._random(ROOT_KEY_BYTES)).decode()},
        }
        try:
            return await self._cluster.create(SECRETS, body, namespace=self._name.namespace)
        except AlreadyExists:
            return await self._cluster.get(SECRETS, self._name)


def _derive(root_key: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), ROOT_KEY_BYTES, salt=None, info=purpose).derive(root_key)
