"""Access tokens of an hour: of a service account, or of the machine that the operator itself runs on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from random import Random
from typing import Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from holdfast.api.credentials import RegistryCredential
from holdfast.cluster.kubernetes.material import RedactedStruct
from holdfast.providers.errors import CloudUnauthorized, ProviderError
from holdfast.providers.gcp.credentials import TOKEN_URI, GoogleServiceAccount
from holdfast.providers.gcp.http import Http, HttpRequest, HttpResponse, NoAnswer
from holdfast.providers.gcp.retries import PASSING, persist

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
COMPUTE = ("https://www.googleapis.com/auth/compute",)
# Scopes of Artifact Registry and of gcr.io: neither lets its bearer make machines.
PUSH = ("https://www.googleapis.com/auth/devstorage.read_write",)
PULL = ("https://www.googleapis.com/auth/devstorage.read_only",)
REGISTRY_USER = "oauth2accesstoken"
OWN_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105  # a path
# A token is replaced this long before its end, or after four fifths of a short life.
RENEW_EARLY_S = 300.0
RETRY_S = 30.0
LONGEST_QUOTE = 200


class AccessToken(RedactedStruct, frozen=True, kw_only=True):
    value: str
    lifetime_s: float


class _TokenReply(RedactedStruct, frozen=True, kw_only=True):
    access_token: str = ""
    expires_in: float = 0.0


class _TokenRefusal(Struct, frozen=True, kw_only=True):
    error: str = ""
    error_description: str = ""


class TokenSource(Protocol):
    async def token(self) -> str:
        """Raises a `ProviderError`."""
        ...

    def forget(self, token: str) -> None:
        """The token was refused: it is not given out again."""
        ...


class SharedToken:
    """A token that concurrent calls share, and that is fetched anew before it ends."""

    def __init__(self, fetch: Callable[[], Awaitable[AccessToken]]) -> None:
        self._fetch = fetch
        self._value = ""
        self._renew_at_s = 0.0
        self._ends_at_s = 0.0
        self._renewal: asyncio.Task[None] | None = None

    async def token(self) -> str:
        if not self._value or _clock_s() >= self._renew_at_s:
            try:
                await self._renewed()
            except CloudUnauthorized:
                raise
            except ProviderError:
                # A fault that passes does no harm while the token of before is good.
                if not self._value or _clock_s() >= self._ends_at_s:
                    raise
                self._renew_at_s = _clock_s() + RETRY_S
        return self._value

    def forget(self, token: str) -> None:
        if token == self._value:
            self._value = ""

    async def _renewed(self) -> None:
        """One fetch for all that wait; it goes on when one of them gives up."""
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(), name="access token")
            self._renewal.add_done_callback(self._ended)
        await asyncio.shield(self._renewal)

    async def _renew(self) -> None:
        began_s = _clock_s()
        token = await self._fetch()
        self._value = token.value
        self._ends_at_s = began_s + token.lifetime_s
        self._renew_at_s = self._ends_at_s - min(RENEW_EARLY_S, token.lifetime_s / 5)

    def _ended(self, renewal: asyncio.Task[None]) -> None:
        self._renewal = None
        if not renewal.cancelled():
            renewal.exception()  # whoever waits has it; if nobody waits any more, it is nobody's

    def __repr__(self) -> str:
        return "SharedToken(…)"


def service_account_tokens(
    account: GoogleServiceAccount,
    http: Http,
    *,
    now: Callable[[], datetime],
    random: Random,
    token_uri: str = TOKEN_URI,
    scopes: Sequence[str] = COMPUTE,
) -> SharedToken:
    return SharedToken(lambda: fetch_token(account, http, now=now, random=random, token_uri=token_uri, scopes=scopes))


async def registry_token(
    account: GoogleServiceAccount,
    http: Http,
    *,
    now: Callable[[], datetime],
    random: Random,
    token_uri: str = TOKEN_URI,
    push: bool,
) -> RegistryCredential:
    """A credential of an hour for Google's registries, made for this one use; without `push` it can only pull."""
    scopes = PUSH if push else PULL
    token = await fetch_token(account, http, now=now, random=random, token_uri=token_uri, scopes=scopes)
    return RegistryCredential(username=REGISTRY_USER, password=token.value)


def is_google_registry(host: str) -> bool:
    """Whether a registry takes the token of a service account: Artifact Registry, and what was Container Registry."""
    return host == "gcr.io" or host.endswith((".gcr.io", "-docker.pkg.dev"))


async def fetch_token(
    account: GoogleServiceAccount,
    http: Http,
    *,
    now: Callable[[], datetime],
    random: Random,
    token_uri: str,
    scopes: Sequence[str],
) -> AccessToken:
    """Raises `CloudUnauthorized` for a key that is revoked, and `ProviderError` for a fault that passes."""
    tried = f"ask Google for a token of {account.email}"

    async def attempt() -> HttpResponse:
        form = {"grant_type": GRANT, "assertion": account.assertion(scopes, token_uri, now())}
        return await http.send(
            HttpRequest(
                method="POST",
                url=token_uri,
                headers={"Content-Type": "application/x-www-form-urlencoded"},
                body=urlencode(form).encode(),
            )
        )

    response = await _asked(tried, attempt, random)
    if response.status in (400, 401, 403):
        raise CloudUnauthorized(
            f"Google gives no token for the key {account.key_id} of {account.email} ({_refusal(response.body)}): if "
            "the key was deleted or the account disabled, store a new key; if neither, check this machine's clock"
        )
    return _token(tried, response)


def own_identity_tokens(http: Http, *, random: Random, address: str) -> SharedToken:
    """Of the service account of the machine, or of the pod, that the operator runs on."""
    tried = "ask the metadata server for a token of the operator's own identity"

    async def fetch() -> AccessToken:
        request = HttpRequest(
            method="GET", url=f"{address}{OWN_TOKEN}", headers={"Metadata-Flavor": "Google"}, timeout_s=10.0
        )
        response = await _asked(tried, lambda: http.send(request), random)
        if response.status in (403, 404):
            raise CloudUnauthorized(
                f"can't {tried}: it answers {response.status}, so this machine has no service account: name a Secret "
                "with the key of one"
            )
        return _token(tried, response)

    return SharedToken(fetch)


async def _asked(tried: str, attempt: Callable[[], Awaitable[HttpResponse]], random: Random) -> HttpResponse:
    try:
        response = await persist(attempt, random)
    except NoAnswer as error:
        raise ProviderError(f"can't {tried}: {error}") from None
    if response.status in PASSING or response.status == 429:
        raise ProviderError(f"can't {tried}: the answer is {response.status}")
    return response


def _token(tried: str, response: HttpResponse) -> AccessToken:
    try:
        reply = msgspec.json.decode(response.body, type=_TokenReply)
    except msgspec.DecodeError:
        reply = _TokenReply()  # the decoder's message may quote the token
    if response.status != 200 or not reply.access_token.isprintable() or not reply.access_token:
        raise ProviderError(f"can't {tried}: the answer ({response.status}) has no token")
    return AccessToken(value=reply.access_token, lifetime_s=max(0.0, reply.expires_in))


def _refusal(body: bytes) -> str:
    try:
        refusal = msgspec.json.decode(body, type=_TokenRefusal)
    except msgspec.DecodeError:
        return "it says no reason"
    text = ": ".join(filter(None, (refusal.error, refusal.error_description)))
    return text[:LONGEST_QUOTE] if text.isprintable() and text else "it says no reason"


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
