"""One request to Google, one answer. Tests answer in process instead."""

from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlencode

import aiohttp
from msgspec import Struct
from yarl import URL

from holdfast.cluster.kubernetes.transport import SendTracker, current_send, open_pool
from holdfast.errors import HoldfastError

CONNECT_S = 10.0
ANSWER_S = 60.0


class NoAnswer(HoldfastError):
    """The request was not answered, or only in part: what it asks for may have been done."""


class HttpRequest(Struct, frozen=True, kw_only=True):
    method: str
    url: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""
    timeout_s: float = ANSWER_S
    gate: Callable[[], None] | None = None
    """Called immediately before the request is sent; what it raises prevents that."""

    @property
    def full_url(self) -> str:
        return f"{self.url}?{urlencode(self.query)}" if self.query else self.url

    def __repr__(self) -> str:
        """Neither headers nor the body: they hold tokens, assertions and the scripts of users."""
        return f"HttpRequest({self.method} {self.url})"


class HttpResponse(Struct, frozen=True, kw_only=True):
    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""

    def __repr__(self) -> str:
        return f"HttpResponse({self.status})"


class Http(Protocol):
    async def send(self, request: HttpRequest) -> HttpResponse:
        """The answer, whatever its status; raises `NoAnswer`."""
        ...

    async def close(self) -> None: ...


class AiohttpHttp:
    """Over the network. Redirects are not followed: no answer of these services is one."""

    def __init__(self) -> None:
        self._pool = open_pool()

    async def send(self, request: HttpRequest) -> HttpResponse:
        tracker = current_send.set(SendTracker(write=request.gate is not None, gate=request.gate))
        try:
            async with self._pool.request(
                request.method,
                URL(request.full_url, encoded=True),
                headers=dict(request.headers),
                data=request.body or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=CONNECT_S),
            ) as response:
                return HttpResponse(status=response.status, headers=response.headers.copy(), body=await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoAnswer(f"{URL(request.url).host} {_reason(error, request.timeout_s)}") from None
        finally:
            current_send.reset(tracker)

    async def close(self) -> None:
        await self._pool.close()


def _reason(error: Exception, timeout_s: float) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "can't be found: does DNS work?"
        case aiohttp.ClientConnectorCertificateError():
            return f"shows a certificate that is not trusted ({error.certificate_error})"
        case aiohttp.ConnectionTimeoutError():
            return f"can't be reached within {CONNECT_S:g} s: is a firewall in between?"
        case TimeoutError():
            return f"did not answer within {timeout_s:g} s"
        case aiohttp.ClientConnectorError():
            return f"can't be reached ({error.os_error.strerror or type(error.os_error).__name__})"
    return f"broke off ({type(error).__name__})"
