"""A certificate authority for one control plane: its servers' certificates and its users'."""

import os
from datetime import datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = "127.0.0.1"


class Pair(NamedTuple):
    """The files of a certificate and its private key."""

    certificate: Path
    key: Path


def write_secret(path: Path, content: str | bytes) -> Path:
    """Write a file that only its owner may read, from its first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


def new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """An elliptic-curve key: as good here as RSA, and made in no time."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, form, plain = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    write_secret(path, key.private_bytes(encoding, form, plain))
    return key


class Authority:
    """Signs for one control plane; `now` is when its certificates begin to be valid."""

    def __init__(self, folder: Path, now: datetime) -> None:
        self._folder = folder
        self._now = now
        self.key_file = folder / "ca.key"
        self._key = new_key(self.key_file)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast-tests")])
        certificate = (
            self._builder(self._name, self._key, timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "ca.crt"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str, address: str = LOOPBACK) -> Pair:
        """For a server on the loopback address, and on another if one is given."""
        addresses = sorted({LOOPBACK, address})
        names = x509.SubjectAlternativeName(
            [*(x509.IPAddress(IPv4Address(one)) for one in addresses), x509.DNSName("localhost")]
        )
        return self._issue(name, [x509.NameAttribute(NameOID.COMMON_NAME, name)], names, timedelta(days=1))

    def user(self, name: str, groups: tuple[str, ...] = (), *, valid: timedelta = timedelta(days=1)) -> Pair:
        """For a user of the API server: the common name is who they are, the organizations are their groups."""
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
        return self._issue(f"user-{name}", subject, None, valid)

    def _issue(
        self,
        file: str,
        subject: list[x509.NameAttribute[str]],
        names: x509.SubjectAlternativeName | None,
        valid: timedelta,
    ) -> Pair:
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        key = new_key(pair.key)
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            self._builder(x509.Name(subject), key, valid)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
    ) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            # An hour back: a certificate that begins this second is refused by a clock that is a moment behind.
            not_valid_before=self._now - timedelta(hours=1),
            not_valid_after=self._now + valid,
        )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
