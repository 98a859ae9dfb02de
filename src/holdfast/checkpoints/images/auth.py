"""How a client logs in to a registry: not at all, by password, or by a token for a scope that is renewed in time."""

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.errors import RegistryError
from holdfast.checkpoints.images.untrusted import UnreadableJson, decode_json

# The specification's own default; a service that says nothing means this.
DEFAULT_LIFETIME_S = 60.0
# A token is renewed this long before its end, or at four fifths of a short life.
MARGIN_S = 10.0
CLIENT_ID = "holdfast"

_PARAMETER = re.compile(r'\s*,?\s*([a-zA-Z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME = re.compile(r"\s*,?\s*([a-zA-Z][a-zA-Z0-9_-]*)(?=\s|$)")


class AuthChallenge(NamedTuple):
    """One demand of a WWW-Authenticate header: `scheme` in lower case, with its parameters."""

    scheme: str
    parameters: Mapping[str, str]


class TokenRequest(NamedTuple):
    """form: sent as the body of a POST; without it, a GET with `query` and the password."""

    url: str
    query: tuple[tuple[str, str], ...]
    form: Mapping[str, str] | None
    authorization: str | None

    def __repr__(self) -> str:
        return f"TokenRequest({self.url})"


class _TokenReply(msgspec.Struct, frozen=True, kw_only=True):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None

    def __repr__(self) -> str:
        return "_TokenReply()"


class _Token(NamedTuple):
    value: str
    renew_at_s: float


FetchToken = Callable[[TokenRequest], Awaitable[bytes]]


def parse_challenges(headers: Iterable[str]) -> list[AuthChallenge]:
    """All demands, in their order. What can't be read ends the reading."""
    found = []
    for header in headers:
        at = 0
        while scheme := _SCHEME.match(header, at):
            at, parameters = scheme.end(), dict[str, str]()
            while parameter := _PARAMETER.match(header, at):
                quoted, plain = parameter[2], parameter[3]
                parameters[parameter[1].lower()] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                at = parameter.end()
            found.append(AuthChallenge(scheme[1].lower(), parameters))
    return found


class RegistryAuth:
    """Remembers what the registry demands and the tokens that it got. One for each client: tokens outlive no run."""

    def __init__(self, credential: RegistryCredential, fetch: FetchToken, clock: Callable[[], float]) -> None:
        self._credential = credential
        self._fetch = fetch
        self._clock = clock
        self._challenge: AuthChallenge | None = None
        self._tokens: dict[str, _Token] = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RegistryAuth({self._credential!r})"

    async def authorization(self, scope: str) -> str | None:
        """The header for a request; None while the registry has demanded nothing."""
        if self._challenge is None:
            return None
        if self._challenge.scheme == "basic":
            return None if self._credential.is_anonymous else _basic(self._credential)
        async with self._lock:
            token = self._tokens.get(scope)
            if token is None or self._clock() >= token.renew_at_s:
                token = self._tokens[scope] = await self._new_token(self._challenge, scope)
        return f"Bearer {token.value}"

    async def renewed(self, headers: Iterable[str], scope: str, used: str | None) -> str | None:
        """After a 401: the header for one more try, with a fresh token; None if nothing else can be tried."""
        known = [one for one in parse_challenges(headers) if one.scheme in ("basic", "bearer")]
        # A registry that offers both has its token service for a reason.
        challenge = next((one for one in known if one.scheme == "bearer"), known[0] if known else None)
        if challenge is not None:
            self._challenge = challenge
        if self._challenge is None or (self._challenge.scheme == "basic" and used is not None):
            return None
        async with self._lock:
            stored = self._tokens.get(scope)
            if stored is not None and used == f"Bearer {stored.value}":
                del self._tokens[scope]
        return await self.authorization(scope)

    async def _new_token(self, challenge: AuthChallenge, scope: str) -> _Token:
        asked_at_s = self._clock()
        try:
            reply = decode_json(await self._fetch(self._request(challenge, scope)), _TokenReply)
        except UnreadableJson:
            # The decoder's message may show a part of the token.
            reply = _TokenReply()
        value = reply.token or reply.access_token
        if not value or not value.isprintable():
            realm = challenge.parameters.get("realm", "")
            raise RegistryError(
                f"the token service {realm!a} answered without a token: look at the registry's settings"
            )
        lifetime_s = DEFAULT_LIFETIME_S if reply.expires_in is None else max(0.0, reply.expires_in)
        return _Token(value, asked_at_s + lifetime_s - min(MARGIN_S, lifetime_s / 5))

    def _request(self, challenge: AuthChallenge, scope: str) -> TokenRequest:
        realm, service = (challenge.parameters.get(name, "") for name in ("realm", "service"))
        # The challenge's own scope is not used: a challenge is remembered, and belongs to an earlier request.
        if token := self._credential.identity_token:
            form = {"grant_type": "refresh_token", "service": service, "client_id": CLIENT_ID, "refresh_token": token}
            return TokenRequest(realm, (), {**form, "scope": scope}, None)
        query = [("service", service)] if service else []
        query += [("scope", one) for one in scope.split()]
        return TokenRequest(
            realm, tuple(query), None, None if self._credential.is_anonymous else _basic(self._credential)
        )


def _basic(credential: RegistryCredential) -> str:
    pair = f"{credential.username}:{credential.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"
