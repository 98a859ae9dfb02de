"""What `kubeadm init` publishes for machines that are to join."""

import base64
from datetime import UTC, datetime, timedelta

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import CONFIG_MAPS

ENDPOINT = "10.0.0.2:6443"
_FROM = datetime(2026, 1, 1, tzinfo=UTC)


def authority() -> x509.Certificate:
    """A new certificate authority's own certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=_FROM,
        not_valid_after=_FROM + timedelta(days=3650),
    )
    return builder.sign(key, hashes.SHA256())


def kubeconfig(*authorities: x509.Certificate, server: str = f"https://{ENDPOINT}") -> str:
    bundle = b"".join(each.public_bytes(Encoding.PEM) for each in authorities)
    cluster = {"certificate-authority-data": base64.b64encode(bundle).decode(), "server": server}
    document: JSON = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster, "name": ""}],
        "contexts": None,
        "current-context": "",
        "preferences": {},
        "users": None,
    }
    return yaml.safe_dump(document)


async def publish(cluster: Cluster, *authorities: x509.Certificate) -> None:
    data = {"kubeconfig": kubeconfig(*authorities)}
    await cluster.create(CONFIG_MAPS, {"metadata": {"name": "cluster-info"}, "data": data}, namespace="kube-public")
