"""The metadata server of a cloud, at a link-local address that only the machine itself reaches.

It speaks plain HTTP. A proxy or a redirect would lead to somebody else, so neither is used.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol

import aiohttp
from msgspec import Struct

from holdfast.errors import HoldfastError

ADDRESS = "http://169.254.169.254"
CONNECT_S = 2.0
ANSWER_S = 5.0
LARGEST_ANSWER = 64 << 10
# A notice may last 30 s only.
LONGEST_RETRY_AFTER_S = 10.0
QUOTED = 60


class MetadataError(HoldfastError):
    """The metadata server gives no answer that can be used."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class MetadataUnreachable(MetadataError):
    """Nobody answers at the address of the metadata server."""


class PreemptionNotice(Struct, frozen=True, kw_only=True):
    """The word of a cloud that it takes this machine back."""

    cloud: str
    deadline: datetime | None = None
    """When the machine goes; None where the cloud names no time."""


class NoticeSource(Protocol):
    """The notices of one cloud. Every method raises a `MetadataError`."""

    cloud: str
    """Its name for people."""
    provider: str
    """Its name in the providerID of a Node."""
    notice_s: float
    """How long before the end the notice comes, where it names no time."""
    interval_s: float
    """The pause between two questions; 0 where the server holds a question until there is something new."""

    async def is_here(self) -> bool:
        """Whether this machine runs in this cloud."""
        ...

    async def current_notice(self) -> PreemptionNotice | None:
        """The notice that stands now; a server that can waits until the answer is another than the last one."""
        ...


class MetadataAnswer(Struct, frozen=True, kw_only=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def quote(self) -> str:
        """The beginning of the body for a message: without control characters."""
        text = self.body[:QUOTED].decode(errors="replace")
        return ascii(text + ("…" if len(self.body) > QUOTED else ""))


class MetadataServer:
    def __init__(self, session: aiohttp.ClientSession, address: str = ADDRESS) -> None:
        self._session = session
        self._address = address.rstrip("/")

    async def ask(
        self, method: str, path: str, *, headers: Mapping[str, str], answer_s: float = ANSWER_S
    ) -> MetadataAnswer:
        """The answer, whatever its status is; never longer than 64 KiB."""
        timeout = aiohttp.ClientTimeout(total=CONNECT_S + answer_s, sock_connect=CONNECT_S)
        try:
            async with self._session.request(
                method, f"{self._address}{path}", headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                body = await _limited(response.content)
                return MetadataAnswer(status=response.status, headers=response.headers, body=body)
        except TimeoutError:
            raise MetadataUnreachable(f"the metadata server does not answer {path} within {answer_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise MetadataUnreachable(f"the metadata server can't be reached: {reason}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise MetadataError(f"the metadata server's answer to {path} breaks off: {type(error).__name__}") from None


@asynccontextmanager
async def metadata_server(address: str = ADDRESS) -> AsyncIterator[MetadataServer]:
    """The server inside the block. Proxies of the environment are not used, and no cookie is kept."""
    async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield MetadataServer(session, address)


def unexpected(answer: MetadataAnswer, path: str) -> MetadataError:
    """The error for an answer with a status that the path should not have."""
    if 300 <= answer.status < 400:
        return MetadataError(f"the metadata server redirects {path}, which is not followed")
    retry_after_s = _retry_after_s(answer.headers.get("Retry-After", ""))
    return MetadataError(f"the metadata server answers {path} with {answer.status}", retry_after_s=retry_after_s)


def unreadable(answer: MetadataAnswer, path: str, expected: str) -> MetadataError:
    """The error for a body that is not what the path has."""
    return MetadataError(f"the metadata server answers {path} with {answer.quote()} instead of {expected}")


async def _limited(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for chunk in content.iter_chunked(LARGEST_ANSWER):
        body += chunk
        if len(body) > LARGEST_ANSWER:
            raise ValueError("too long")
    return bytes(body)


def _retry_after_s(text: str) -> float | None:
    """Whole seconds alone: no metadata server is known to send a date."""
    return min(float(text), LONGEST_RETRY_AFTER_S) if text.isascii() and text.isdigit() else None
