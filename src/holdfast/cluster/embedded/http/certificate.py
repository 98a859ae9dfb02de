"""A certificate of the server's own: kubectl sends its token over TLS only, even to this machine."""

import os
import ssl
from datetime import datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# Longer than any server runs: each start makes a new one.
VALID = timedelta(days=3650)


class Identity(NamedTuple):
    """What a server shows, and what a client must know to trust it."""

    context: ssl.SSLContext
    authority: bytes


def own_identity(host: str, now: datetime) -> Identity:
    """A key that never leaves this process, and a certificate for `host` that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast")])
    certificate = (
        x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(hours=1),
            not_valid_after=now + VALID,
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Identity(_context(certificate, secret), certificate)


def _context(certificate: bytes, secret: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with TemporaryDirectory() as folder:  # the ssl module reads keys from files only
        file = Path(folder, "pair.pem")
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as pair:
            pair.write(secret + certificate)
        context.load_cert_chain(file)
    return context
