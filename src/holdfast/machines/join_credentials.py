"""What kubeadm needs to trust the cluster and to be trusted by it: endpoint, hashes of the CA, and a token.

Users give them in kubeadmJoinConfig, in part or in full. What they leave out comes from ConfigMap
kube-public/cluster-info, which kubeadm writes for this purpose and anybody may read, and from a token for this machine.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping

import msgspec
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct

from holdfast.api.core.objects import Secret
from holdfast.api.meta import Key
from holdfast.api.spotinstancevm import KubeadmJoinConfig
from holdfast.cluster.errors import Forbidden, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS
from holdfast.machines.joining import CannotJoin, JoinTarget
from holdfast.runtime.secrets import SecretReader

CLUSTER_INFO = Key("kube-public", "cluster-info")
FIELD = "kubeadmJoinConfig.tokenSecretRef"
REMEDY = (
    "write it with `kubeadm init phase bootstrap-token`, or set kubeadmJoinConfig with the API server's endpoint and "
    "the hash of its CA"
)
TOKEN_FIELD, HASH_FIELD, ENDPOINT_FIELD = "token", "ca-cert-hash", "control-plane-endpoint"

_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_ENDPOINT = re.compile(r"[^\s/]+:[0-9]{1,5}")


class GivenCredentials(Struct, frozen=True):
    """What a user has given; empty where nothing. The token is never printed."""

    token: str = ""
    ca_cert_hash: str = ""
    endpoint: str = ""

    def __repr__(self) -> str:
        return f"GivenCredentials({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("endpoint", self.endpoint)]


class JoinClusterInfo(Struct, frozen=True):
    endpoint: str
    ca_cert_hashes: tuple[str, ...]


class JoinCredentials(Struct, frozen=True, kw_only=True):
    """The token is never printed."""

    token: str
    ca_cert_hashes: tuple[str, ...]
    endpoint: str

    def __repr__(self) -> str:
        return f"JoinCredentials({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("endpoint", self.endpoint)]


class JoinCredentialSource:
    """Reads afresh at each join: tokens expire and are renewed."""

    def __init__(self, cluster: Cluster, secrets: SecretReader) -> None:
        self._cluster = cluster
        self._secrets = secrets

    async def given(self, target: JoinTarget) -> GivenCredentials:
        config = target.kubeadm
        if config is None:
            return GivenCredentials()
        secret = await self._secrets.read(config.token_secret_ref, target.namespace, field=FIELD)
        return given_credentials(config, secret)

    async def complete(self, given: GivenCredentials, minted: str = "") -> JoinCredentials:
        """`minted` is the token where the user has given none."""
        hashes: tuple[str, ...] = (given.ca_cert_hash,) if given.ca_cert_hash else ()
        endpoint = given.endpoint
        if not (hashes and endpoint):
            info = await self._cluster_info()
            hashes, endpoint = hashes or info.ca_cert_hashes, endpoint or info.endpoint
        return JoinCredentials(token=given.token or minted, ca_cert_hashes=hashes, endpoint=endpoint)

    async def _cluster_info(self) -> JoinClusterInfo:
        try:
            found = await self._cluster.get(CONFIG_MAPS, CLUSTER_INFO)
        except NotFound:
            raise CannotJoin(
                "NoClusterInfo",
                f"there is no ConfigMap {CLUSTER_INFO}, which tells machines how to join: {REMEDY}",
            ) from None
        except Forbidden as error:
            raise CannotJoin("NoClusterInfo", f"the operator may not read ConfigMap {CLUSTER_INFO}: {error}") from None
        return cluster_info(found.data)


def given_credentials(config: KubeadmJoinConfig, secret: Secret) -> GivenCredentials:
    """The Secret's, and of the spec what it has instead."""
    token = _checked(secret, TOKEN_FIELD, _TOKEN, "a token as `kubeadm token create` prints it")
    if not token:
        raise CannotJoin(
            "InvalidToken",
            f"Secret {secret.metadata.key} of {FIELD} has no {TOKEN_FIELD}: put one there that `kubeadm token create` "
            "prints, or remove kubeadmJoinConfig, and each machine gets a token of its own",
        )
    return GivenCredentials(
        token=token,
        ca_cert_hash=config.ca_cert_hash or _checked(secret, HASH_FIELD, _HASH, "sha256: and 64 hexadecimal digits"),
        endpoint=config.control_plane_endpoint
        or _checked(secret, ENDPOINT_FIELD, _ENDPOINT, "host and port, such as 10.0.0.2:6443"),
    )


def cluster_info(data: Mapping[str, str]) -> JoinClusterInfo:
    """From the kubeconfig in the ConfigMap; every certificate of its CA may be the one that the server shows."""
    try:
        document = msgspec.convert(yaml.safe_load(data["kubeconfig"]), _Kubeconfig)
        cluster = document.clusters[0].cluster
        certificates = x509.load_pem_x509_certificates(base64.b64decode(cluster.certificate_authority_data))
    except (KeyError, IndexError, ValueError, binascii.Error, yaml.YAMLError, msgspec.ValidationError) as error:
        raise CannotJoin(
            "InvalidClusterInfo",
            f"the kubeconfig in ConfigMap {CLUSTER_INFO} can't be read ({type(error).__name__}): {REMEDY}",
        ) from None
    return JoinClusterInfo(_endpoint(cluster.server), tuple(dict.fromkeys(map(ca_cert_hash, certificates))))


def ca_cert_hash(certificate: x509.Certificate) -> str:
    """Of the public key, so that a certificate which is renewed with the same key has the same hash."""
    public_key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(public_key).hexdigest()}"


class _Cluster(Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority_data: str


class _NamedCluster(Struct, frozen=True):
    cluster: _Cluster


class _Kubeconfig(Struct, frozen=True):
    clusters: tuple[_NamedCluster, ...]


def _endpoint(server: str) -> str:
    """host:port, as kubeadm wants it."""
    host = server.removeprefix("https://").partition("/")[0]
    has_port = bool(re.search(r":[0-9]+$", host)) and not host.endswith("]")
    return host if has_port else f"{host}:443"


def _checked(secret: Secret, field: str, shape: re.Pattern[str], wanted: str) -> str:
    """The value of that key; what it is instead is not said, since it may be a secret in the wrong place."""
    value = secret.data.get(field, b"").decode(errors="replace").strip()
    if value and not shape.fullmatch(value):
        raise CannotJoin(
            "InvalidToken", f"{field} of Secret {secret.metadata.key} of {FIELD} is not {wanted}: write it like that"
        )
    return value
