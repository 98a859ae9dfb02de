"""Service accounts of the double: their key files, and tokens for assertions that are signed with the right key."""

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from holdfast.providers.gcp.http import HttpResponse
from tests.providers.compute_engine.refusals import Refused, unauthenticated

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
GOOGLE_TOKEN_URI = "https://oauth2.googleapis.com/token"
COMPUTE_SCOPES = frozenset(
    ("https://www.googleapis.com/auth/compute", "https://www.googleapis.com/auth/cloud-platform")
)
LIFETIME_S = 3600
# Google accepts clocks that are a little off.
SKEW_S = 300


@cache
def private_key(number: int) -> rsa.RSAPrivateKey:
    """One for each number: making a key takes its time."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Account:
    """permissions: what it may do; a test takes one away to see who asks for it."""

    def __init__(self, email: str, key_number: int, permissions: Iterable[str]) -> None:
        self.email = email
        self.key = private_key(key_number)
        self.key_id = f"{key_number:040x}"
        self.permissions = set(permissions)
        self.is_revoked = False

    def key_file(self, **changes: object) -> bytes:
        """As Google makes it: the value of credentials.json in a Secret."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = {
            "type": "service_account",
            "project_id": "my-gcp-project",
            "private_key_id": self.key_id,
            "private_key": pem.decode(),
            "client_email": self.email,
            "client_id": "104357113111111111111",
            "auth_uri": "https://accounts.google.com/o/oauth2/auth",
            "token_uri": GOOGLE_TOKEN_URI,
            "auth_provider_x509_cert_url": "https://www.googleapis.com/oauth2/v1/certs",
            "client_x509_cert_url": "https://www.googleapis.com/robot/v1/metadata/x509/robot",
            "universe_domain": "googleapis.com",
        }
        return msgspec.json.encode({**file, **changes})


class _Token(msgspec.Struct, frozen=True):
    account: Account
    scopes: frozenset[str]
    ends_at_s: float


class Accounts:
    """`given` are the scopes of the tokens that were given out, in their order."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accounts: dict[str, Account] = {}
        self._tokens: dict[str, _Token] = {}
        self.given: list[frozenset[str]] = []
        self.lifetime_s = LIFETIME_S
        self.own: Account | None = None
        """Whose tokens the metadata server of the operator's own machine gives."""

    def add(self, email: str, permissions: Iterable[str]) -> Account:
        account = self._accounts[email] = Account(email, len(self._accounts), permissions)
        return account

    def answer(self, body: bytes, token_uri: str) -> HttpResponse:
        """Of the token address."""
        form = dict(parse_qsl(body.decode()))
        if form.get("grant_type") != GRANT:
            return _refusal("unsupported_grant_type", f"Invalid grant_type: {form.get('grant_type')}")
        try:
            account, claims = self._verified(form.get("assertion", ""), {token_uri, GOOGLE_TOKEN_URI})
        except ValueError as error:
            return _refusal("invalid_grant", str(error))
        return self._give(account, frozenset(claims["scope"].split()))

    def answer_own(self, headers: Mapping[str, str]) -> HttpResponse:
        """Of the metadata server."""
        if headers.get("Metadata-Flavor") != "Google":
            return HttpResponse(status=403)
        if self.own is None:
            return HttpResponse(status=404)
        return self._give(self.own, COMPUTE_SCOPES)

    def owner(self, headers: Mapping[str, str]) -> Account:
        """Whose token a request carries; it must be good for Compute Engine."""
        kind, _, value = headers.get("Authorization", "").partition(" ")
        token = self._tokens.get(value)
        if kind != "Bearer" or token is None or token.account.is_revoked or _clock_s() >= token.ends_at_s:
            raise unauthenticated()
        if not token.scopes & COMPUTE_SCOPES:
            reason = {"reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT", "domain": "googleapis.com"}
            message = "Request had insufficient authentication scopes."
            raise Refused(403, "insufficientPermissions", message, details=[reason])
        return token.account

    def forget_tokens(self) -> None:
        """As after a change of keys at Google: all that were given are refused."""
        self._tokens.clear()

    def _give(self, account: Account, scopes: frozenset[str]) -> HttpResponse:
        self.given.append(scopes)
        value = f"ya29.{len(self.given):06}"
        self._tokens[value] = _Token(account, scopes, _clock_s() + self.lifetime_s)
        reply = {"access_token": value, "expires_in": self.lifetime_s - 1, "token_type": "Bearer"}
        return HttpResponse(status=200, headers={"Content-Type": "application/json"}, body=msgspec.json.encode(reply))

    def _verified(self, assertion: str, audiences: set[str]) -> tuple[Account, Mapping[str, Any]]:
        """The account that signed it; the words of the errors are Google's."""
        parts = assertion.split(".")
        if len(parts) != 3:
            raise ValueError("Invalid JWT: wrong number of segments")
        header, claims = (msgspec.json.decode(_decoded(part)) for part in parts[:2])
        account = self._accounts.get(claims.get("iss"))
        if account is None or account.is_revoked:
            raise ValueError("Invalid grant: account not found")
        if header.get("alg") != "RS256" or header.get("kid") != account.key_id:
            raise ValueError("Invalid JWT Signature.")
        signed = f"{parts[0]}.{parts[1]}".encode()
        try:
            account.key.public_key().verify(_decoded(parts[2]), signed, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            raise ValueError("Invalid JWT Signature.") from None
        issued, ends, now = claims["iat"], claims["exp"], self._now().timestamp()
        if ends - issued > LIFETIME_S or issued > now + SKEW_S or ends < now - SKEW_S:
            raise ValueError(
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your "
                "iat and exp values in the JWT claim."
            )
        if claims.get("aud") not in audiences or not claims.get("scope"):
            raise ValueError("Invalid JWT: Failed audience check.")
        return account, claims


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _refusal(error: str, description: str) -> HttpResponse:
    body = msgspec.json.encode({"error": error, "error_description": description})
    return HttpResponse(status=400, headers={"Content-Type": "application/json"}, body=body)


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
