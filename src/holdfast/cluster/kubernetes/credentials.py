"""Who asks, as a request shows it: a header, a certificate, or both."""

import base64
from typing import Protocol

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.config import User
from holdfast.cluster.kubernetes.material import RotatingFile
from holdfast.cluster.kubernetes.private import RedactedStruct


class Certificate(RedactedStruct, frozen=True, kw_only=True):
    """A client certificate with its key, both in PEM."""

    chain: bytes
    key: bytes


class Identity(RedactedStruct, frozen=True, kw_only=True):
    """What one request shows to the server."""

    authorization: str = ""
    certificate: Certificate | None = None


class Credentials(Protocol):
    """Identities over time: tokens and certificates expire and are replaced."""

    async def identity(self, now_s: float) -> Identity: ...

    async def renew(self, refused: Identity, now_s: float) -> None:
        """The server did not accept `refused`: look for a newer one now."""
        ...


class StaticCredentials:
    """What the kubeconfig or the service account names: tokens, passwords, certificates, in line or in files."""

    def __init__(self, user: User) -> None:
        self._token = RotatingFile(user.token) if user.token else None
        self._basic = basic(user.username, user.password) if user.username else ""
        self._certificate = RotatingFile(user.certificate) if user.certificate else None
        self._key = RotatingFile(user.key) if user.key else None

    async def identity(self, now_s: float) -> Identity:
        return self._read(now_s, recheck=False)

    async def renew(self, refused: Identity, now_s: float) -> None:
        self._read(now_s, recheck=True)

    def _read(self, now_s: float, *, recheck: bool) -> Identity:
        authorization, certificate = self._basic, None
        if self._token:
            authorization = bearer(self._token.read(now_s, recheck=recheck).decode(errors="replace"))
        if self._certificate and self._key:
            certificate = Certificate(
                chain=self._certificate.read(now_s, recheck=recheck), key=self._key.read(now_s, recheck=recheck)
            )
        return Identity(authorization=authorization, certificate=certificate)


def bearer(token: str) -> str:
    """The header for a token; one that can't stand in a header is refused without being shown."""
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Misconfigured("the token holds characters that no token has: it must be one line of printable ASCII")
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
