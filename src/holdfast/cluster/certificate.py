"""A self-signed server certificate: no token is sent in the clear, not even on one host."""

import os
import ssl
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# Always valid: clients trust exactly this certificate, and their clocks may be wrong.
VALID_FROM = datetime(1970, 1, 1, tzinfo=UTC)
VALID_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


class ServerIdentity(NamedTuple):
    """The TLS context of a server, and the certificate by which clients trust the server."""

    context: ssl.SSLContext
    authority: bytes


def self_signed_identity(host: str) -> ServerIdentity:
    """A self-signed certificate for the address `host`; the key never leaves this process."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast")])
    certificate = (
        x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=VALID_FROM,
            not_valid_after=VALID_UNTIL,
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ServerIdentity(_context(certificate, secret), certificate)


def _context(certificate: bytes, secret: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The ssl module reads keys from files only: this file is only in memory.
    with os.fdopen(os.memfd_create("pair.pem"), "wb") as pair:
        pair.write(secret + certificate)
        pair.flush()
        context.load_cert_chain(f"/proc/self/fd/{pair.fileno()}")
    return context
