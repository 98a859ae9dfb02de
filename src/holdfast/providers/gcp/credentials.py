"""The key of a Google service account, as a Secret has it under credentials.json.

The other types of Google's credential files name addresses to fetch, files to read or programs to run: whoever may
write such a Secret could have the operator do that. They are refused, and so is a key with a foreign token address.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from google.auth import jwt
from google.auth.crypt import RSASigner
from msgspec import Struct

from holdfast.providers.errors import CloudUnauthorized

FILE = "credentials.json"
SERVICE_ACCOUNT = "service_account"
TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105  # an address
# Keys that were made years ago name the addresses of their time. The assertion goes to TOKEN_URI all the same.
GOOGLE_TOKEN_URIS = frozenset(
    (TOKEN_URI, "https://accounts.google.com/o/oauth2/token", "https://www.googleapis.com/oauth2/v4/token")
)
UNIVERSE = "googleapis.com"
# Google refuses assertions that are valid for longer.
ASSERTION_LIFETIME_S = 3600
LARGEST_FILE = 64 << 10
QUOTED = 80

_WHAT_TO_WRITE = f"store the JSON key file of a service account, as Google made it, under the Secret's key {FILE}"


class _KeyFile(Struct, frozen=True):
    type: str = ""
    client_email: str = ""
    private_key: str = ""
    private_key_id: str = ""
    project_id: str = ""
    token_uri: str = ""
    universe_domain: str = UNIVERSE

    def __repr__(self) -> str:
        return "_KeyFile(…)"


class GoogleServiceAccount:
    """A service account with one of its keys. The key signs, and is never shown."""

    def __init__(self, email: str, key_id: str, project: str, private_key: RSAPrivateKey) -> None:
        self.email = email
        self.key_id = key_id
        self.project = project
        """The project that the account belongs to, which need not be that of its machines."""
        self._signer = RSASigner(private_key, key_id)  # type: ignore[no-untyped-call]  # google-auth has few types

    @property
    def identity(self) -> str:
        """The same for the same key, and no secret."""
        return f"{self.email}/{self.key_id}"

    def assertion(self, scopes: Sequence[str], token_uri: str, now: datetime) -> str:
        """A signed request for an access token (RFC 7523)."""
        issued = int(now.timestamp())
        claims = {
            "iss": self.email,
            "scope": " ".join(scopes),
            "aud": token_uri,
            "iat": issued,
            "exp": issued + ASSERTION_LIFETIME_S,
        }
        signed: bytes = jwt.encode(self._signer, claims)  # type: ignore[no-untyped-call]
        return signed.decode()

    def __repr__(self) -> str:
        return f"ServiceAccount({self.email})"

    def __rich_repr__(self) -> Sequence[tuple[str, object]]:
        return (("email", self.email),)


def parse_service_account(content: bytes, *, token_uri: str = TOKEN_URI) -> GoogleServiceAccount:
    """Raises `CloudUnauthorized` with what to write; nothing of the content but its type and addresses is quoted.

    token_uri: the configured one, which a key may name as well as Google's.
    """
    file = _decode(content)
    if file.type != SERVICE_ACCOUNT:
        said = f"is of type {_quote(file.type)}" if file.type else "says no type"
        raise CloudUnauthorized(
            f"{FILE} {said}, and only {SERVICE_ACCOUNT} is accepted, since other types can make their reader fetch "
            f"addresses, read files or run programs: {_WHAT_TO_WRITE}"
        )
    if missing := [name for name in ("client_email", "private_key", "private_key_id") if not getattr(file, name)]:
        raise CloudUnauthorized(f"{FILE} lacks {' and '.join(missing)}: {_WHAT_TO_WRITE}")
    if file.token_uri not in {*GOOGLE_TOKEN_URIS, token_uri}:
        raise CloudUnauthorized(
            f"{FILE} names {_quote(file.token_uri)} as token_uri, and a key is shown to {token_uri} alone: "
            f"{_WHAT_TO_WRITE}"
        )
    if file.universe_domain != UNIVERSE:
        raise CloudUnauthorized(
            f"{FILE} is for {_quote(file.universe_domain)}, and machines are made at {UNIVERSE} alone: {_WHAT_TO_WRITE}"
        )
    return GoogleServiceAccount(file.client_email, file.private_key_id, file.project_id, _private_key(file.private_key))


def _decode(content: bytes) -> _KeyFile:
    if len(content) > LARGEST_FILE:
        raise CloudUnauthorized(f"{FILE} has {len(content)} bytes, more than any key: {_WHAT_TO_WRITE}")
    try:
        return msgspec.json.decode(content, type=_KeyFile)
    except msgspec.ValidationError:
        raise CloudUnauthorized(f"{FILE} is not the key of a service account: {_WHAT_TO_WRITE}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CloudUnauthorized(f"{FILE} is not JSON: {_WHAT_TO_WRITE}") from None


def _private_key(pem: str) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CloudUnauthorized(f"the private_key in {FILE} can't be read: {_WHAT_TO_WRITE}") from None
    if not isinstance(key, RSAPrivateKey):
        raise CloudUnauthorized(f"the private_key in {FILE} is not an RSA key, as Google's are: {_WHAT_TO_WRITE}")
    return key


def _quote(text: str) -> str:
    return ascii(text[:QUOTED] + ("…" if len(text) > QUOTED else "")) if text else "nothing"
