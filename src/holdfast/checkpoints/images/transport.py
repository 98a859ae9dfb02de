"""One request to a registry: with the right credential, redirects followed or refused, and every refusal named.

Failures that pass (429, 5xx, a reset, silence) are tried again until the client's deadline, after the registry's
Retry-After or after pauses that grow.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec
from yarl import URL

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.auth import RegistryAuth, TokenRequest
from holdfast.checkpoints.images.errors import (
    DeletionUnsupported,
    DigestMismatch,
    InvalidRegistrySecret,
    LayerTooLarge,
    RedirectRefused,
    RegistryError,
    RegistryForbidden,
    RegistryUnauthorized,
    RepositoryNotFound,
)
from holdfast.checkpoints.images.reference import RegistryAddress, is_url, same_host
from holdfast.checkpoints.images.retries import RetryPauses, RetryTiming, TemporaryFailure, retry_after_s
from holdfast.checkpoints.images.untrusted import UnreadableJson, decode_json

MAX_REDIRECTS = 5
MAX_ERROR = 64 << 10
REDIRECTS = frozenset((301, 302, 303, 307, 308))
TEMPORARY = frozenset((408, 429, 500, 502, 503, 504, 507))

_AUTHORIZATION = re.compile(r"\b(basic|bearer)\s+[a-z0-9+/=._~-]{8}", re.IGNORECASE)

Result = TypeVar("Result")


class Body(Protocol):
    """The content of a request, which may be sent more than once."""

    @property
    def size(self) -> int: ...

    def chunks(self, alive: Callable[[], None]) -> AsyncIterator[bytes | memoryview]:
        """`alive` is to be called with every chunk: a connection that takes none for long is broken."""
        ...


class RegistryRequest(NamedTuple):
    """A request. what: for messages. accepts: answers that are no failure. is_blob: another host may answer it.

    idle_s: how long silence is borne, if not as long as usual. is_cleanup: it is tried after the deadline, too.
    """

    method: str
    url: str
    what: str
    scope: str
    accepts: Collection[int]
    headers: Mapping[str, str] = {}
    body: Body | None = None
    is_blob: bool = False
    idle_s: float | None = None
    is_cleanup: bool = False
    missing: type[RegistryError] = RepositoryNotFound


class _ErrorEntry(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _ErrorReply(msgspec.Struct, frozen=True):
    errors: tuple[_ErrorEntry, ...] = ()


class RegistryTransport:
    def __init__(
        self, address: RegistryAddress, credential: RegistryCredential, plain_http: Collection[str], timing: RetryTiming
    ) -> None:
        self.address = address
        self.timing = timing
        self._credential = credential
        self._plain_http = frozenset(plain_http)
        self._auth = RegistryAuth(credential, self._fetch_token, timing.clock)
        self._trust = _trust(credential.authority)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._trust),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            auto_decompress=False,
            headers={"User-Agent": "holdfast"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def persist(self, what: str, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Attempt until it goes well, or raises another error than TemporaryFailure, or the deadline comes."""
        pauses = RetryPauses(self.timing, what, self.address.host)
        while True:
            try:
                return await attempt()
            except TemporaryFailure as failure:
                pause_s = pauses.after(failure)
            await self.timing.sleep(pause_s)

    async def answer(self, ask: RegistryRequest, limit: int) -> tuple[aiohttp.ClientResponse, bytes]:
        """RegistryRequest, again and again if need be, for an answer that is small."""

        async def attempt() -> tuple[aiohttp.ClientResponse, bytes]:
            async with await self.send(ask) as response:
                return response, await self.read_small(response, ask.what, limit)

        return await self.persist(ask.what, attempt)

    async def send(self, ask: RegistryRequest) -> aiohttp.ClientResponse:
        """One request, and after a 401 once more with a fresh token. The caller closes the answer."""
        authorization, is_last = await self._auth.authorization(ask.scope), False
        while True:
            response = await self._follow(ask, authorization)
            if response.status in ask.accepts:
                return response
            text = await self._error_text(response)
            if response.status != 401 or is_last:
                break
            is_last = authorization is not None
            challenges = response.headers.getall("WWW-Authenticate", [])
            authorization = await self._auth.renewed(challenges, ask.scope, authorization)
            if authorization is None:
                break
        if response.status in TEMPORARY:
            raise TemporaryFailure(
                f"{self.address.host} answers {response.status}{text}", retry_after_s=retry_after_s(response.headers)
            )
        raise self._refused(response.status, ask, text)

    async def _follow(self, ask: RegistryRequest, authorization: str | None) -> aiohttp.ClientResponse:
        """The answer after all redirects. The credential goes to the registry's own host and to no other."""
        url = ask.url
        for _ in range(MAX_REDIRECTS + 1):
            is_own = self.is_own(url)
            response = await self._send(ask, url, authorization if is_own else None)
            target = response.headers.get("Location")
            if response.status not in REDIRECTS or not target or response.status in ask.accepts:
                return response
            response.close()
            url = self.joined(url, target, ask.what)
            self._may_follow(ask, url, response.status)
        raise RedirectRefused(f"can't {ask.what}: {self.address.host} redirects more than {MAX_REDIRECTS} times")

    def joined(self, base: str, target: str, what: str) -> str:
        """Where the registry points to. Raises RegistryError for what is no address."""
        try:
            url = urljoin(base, target)
        except ValueError:
            url = ""
        if not is_url(url):
            raise RegistryError(
                f"can't {what}: {self.address.host} points to {target[:200]!a}, which is no address: look at the "
                "registry's settings"
            )
        return url

    def is_own(self, url: str) -> bool:
        """Whether a URL leads to the registry itself, over TLS if the registry is reached so."""
        return same_host(url, self.address.origin) and urlsplit(url).scheme == urlsplit(self.address.origin).scheme

    def resolve(self, base: str, location: str) -> str:
        """Where an upload goes on. A registry behind a proxy may not know that it is reached over TLS."""
        url = self.joined(base, location, "go on with an upload")
        parts, own = urlsplit(url), urlsplit(self.address.origin)
        if parts.scheme == "http" and own.scheme == "https" and parts.hostname == own.hostname:
            url = parts._replace(scheme="https", netloc=own.netloc).geturl()
        self.must_be_safe(url, "go on with an upload")
        return url

    def must_be_safe(self, url: str, what: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "https" or (parts.scheme == "http" and parts.netloc.lower() in self._plain_http):
            return
        raise RedirectRefused(
            f"can't {what}: {self.address.host} points to {parts.scheme}://{parts.netloc}, which is not reached "
            "without TLS: look at the registry's settings"
        )

    def _may_follow(self, ask: RegistryRequest, url: str, status: int) -> None:
        self.must_be_safe(url, ask.what)
        if not ask.is_blob and not self.is_own(url):
            raise RedirectRefused(
                f"can't {ask.what}: {self.address.host} points to another host, {urlsplit(url).netloc}, and only blobs "
                "may come from there: look at the registry's settings"
            )
        if ask.method not in ("GET", "HEAD") and status not in (307, 308):
            raise RedirectRefused(f"can't {ask.what}: {self.address.host} redirects a {ask.method} with {status}")

    async def _send(self, ask: RegistryRequest, url: str, authorization: str | None) -> aiohttp.ClientResponse:
        headers = dict(ask.headers)
        if authorization:
            headers["Authorization"] = authorization
        loop = asyncio.get_running_loop()
        with self._translated(ask.what, url):
            async with asyncio.timeout(self._patience_s(ask)) as timer:

                def alive() -> None:
                    timer.reschedule(loop.time() + self._patience_s(ask))

                data = None
                if ask.body is not None:
                    headers["Content-Length"] = str(ask.body.size)
                    data = ask.body.chunks(alive)
                return await self._opened.request(
                    ask.method, URL(url, encoded=True), headers=headers, data=data, allow_redirects=False
                )

    async def read_small(self, response: aiohttp.ClientResponse, what: str, limit: int) -> bytes:
        content = bytearray()
        async for chunk in self.read(response, what):
            content += chunk
            if len(content) > limit:
                raise RegistryError(f"can't {what}: {self.address.host} answers with more than {limit >> 10} KiB")
        return bytes(content)

    async def read(self, response: aiohttp.ClientResponse, what: str) -> AsyncIterator[bytes]:
        while True:
            with self._translated(what, str(response.url)):
                async with asyncio.timeout(self._patience_s()):
                    chunk = await response.content.readany()
            if not chunk:
                return
            yield chunk

    async def _fetch_token(self, request: TokenRequest) -> bytes:
        if not is_url(request.url):
            raise RegistryError(f"{self.address.host} asks for a token and names no service that gives one")
        host = urlsplit(request.url).netloc
        what = f"get a token from {host}"
        self.must_be_safe(request.url, what)
        headers = {"Authorization": request.authorization} if request.authorization else {}
        with self._translated(what, request.url):
            async with asyncio.timeout(self._patience_s()):
                response = await self._opened.request(
                    "POST" if request.form is not None else "GET",
                    URL(request.url).update_query(request.query),
                    headers=headers,
                    data=request.form,
                    allow_redirects=False,
                )
        async with response:
            if response.status == 200:
                return await self.read_small(response, what, MAX_ERROR)
            if response.status in REDIRECTS:
                raise RedirectRefused(
                    f"can't {what}: it redirects, and a credential follows no redirect: have the registry name the "
                    "token service's own address"
                )
            text = await self._error_text(response)
            if response.status in TEMPORARY:
                raise TemporaryFailure(
                    f"{host} answers {response.status}{text}", retry_after_s=retry_after_s(response.headers)
                )
            raise RegistryUnauthorized(
                f"can't {what}: it refuses {self._credential.who} ({response.status}{text}): put a valid one into the "
                "Secret of registry.secretRef"
            )

    @property
    def _opened(self) -> aiohttp.ClientSession:
        assert self._session is not None, "a client is used inside `async with`"
        return self._session

    def _patience_s(self, ask: RegistryRequest | None = None) -> float:
        idle_s = ask.idle_s if ask and ask.idle_s is not None else self.timing.idle_s
        return idle_s if ask and ask.is_cleanup else max(0.0, min(idle_s, self.timing.left_s))

    def _translated(self, what: str, url: str) -> "_Translated":
        return _Translated(what, self.address.host if self.is_own(url) else urlsplit(url).netloc)

    async def _error_text(self, response: aiohttp.ClientResponse) -> str:
        """The registry's own words, such as ` DENIED: quota exceeded`; the answer is closed."""
        try:
            content = await self.read_small(response, "read an error", MAX_ERROR)
            entries = decode_json(content, _ErrorReply).errors
        except (UnreadableJson, TemporaryFailure, RegistryError):
            return ""
        finally:
            response.close()
        said = "; ".join(f"{entry.code}: {entry.message}".strip(": ") for entry in entries[:3])
        return f" {said[:300]!s}" if said and said.isprintable() and not self._shows_credential(said) else ""

    def _shows_credential(self, said: str) -> bool:
        """Some servers quote the request that they refuse, and messages are for all who may read the object."""
        secrets = (self._credential.password, self._credential.identity_token)
        return bool(_AUTHORIZATION.search(said)) or any(len(each) > 3 and each in said for each in secrets)

    def _refused(self, status: int, ask: RegistryRequest, text: str) -> RegistryError:
        host, who, size = self.address.host, self._credential.who, ask.body.size if ask.body else 0
        said = f"can't {ask.what}: {host} answers {status}{text}"
        if status == 401:
            return RegistryUnauthorized(f"{said} to {who}: put a valid one into the Secret of registry.secretRef")
        if status == 403:
            return RegistryForbidden(f"{said} with {who}: give it the right to do so, or use another")
        if status == 404:
            kind = RepositoryNotFound if "NAME_UNKNOWN" in text else ask.missing
            if kind is RepositoryNotFound:
                return kind(f"{said}: create the repository, or correct registry.repository")
            return kind(said)
        if status == 405 and ask.method == "DELETE":
            return DeletionUnsupported(
                f"{said}: allow deletion in the registry, or let its own rules remove old images"
            )
        if status == 413:
            return LayerTooLarge(
                f"{said}, and there are {size} bytes: raise the limit of the registry or of the proxy before it"
            )
        if "DIGEST_INVALID" in text or "SIZE_INVALID" in text:
            return DigestMismatch(f"{said}: the content was changed on the way, nothing is tagged")
        return RegistryError(f"{said}: look at the registry's log")


class _Translated:
    """Turns failures of the network into TemporaryFailure, and a certificate that is not trusted into RegistryError."""

    def __init__(self, what: str, host: str) -> None:
        self._what = what
        self._host = host

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            raise RegistryError(
                f"can't {self._what}: the certificate of {self._host} is not trusted ({error}): put the CA that signed "
                "it into the Secret of registry.secretRef as ca.crt"
            ) from None
        if isinstance(error, aiohttp.ClientConnectorSSLError) and "WRONG_VERSION_NUMBER" in str(error):
            raise RegistryError(
                f"can't {self._what}: {self._host} does not speak TLS: list it with the option "
                "--plain-http-registry of operator, agents and commands, if that is meant"
            ) from None
        if isinstance(error, TimeoutError):
            raise TemporaryFailure(f"{self._host} is silent") from None
        if isinstance(error, aiohttp.ClientConnectorError):
            raise TemporaryFailure(f"{self._host} can't be reached ({_os_text(error.os_error)})") from None
        if isinstance(error, aiohttp.ClientError | OSError):
            raise TemporaryFailure(f"the connection to {self._host} broke ({type(error).__name__})") from None


def _os_text(error: OSError) -> str:
    """Such as `Connection refused`; a name that can't be resolved has a number of its own."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or type(error).__name__


def _trust(authority: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authority:
        try:
            context.load_verify_locations(cadata=authority)
        except ssl.SSLError:
            raise InvalidRegistrySecret("the Secret's ca.crt holds no certificate in PEM form") from None
    return context
