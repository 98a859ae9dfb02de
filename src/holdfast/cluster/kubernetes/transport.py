"""HTTP to one API server: one connection pool, renewed credentials, retries that never repeat a write by accident."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from random import Random
from typing import Any, TypeAlias

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from msgspec import Struct
from yarl import URL

from holdfast import __version__
from holdfast.cluster.errors import ClusterError, Undecodable, Unreachable
from holdfast.cluster.kubernetes.credentials import (
    CredentialSource,
    ExecPluginCredentials,
    RequestIdentity,
    StaticCredentials,
)
from holdfast.cluster.kubernetes.kubeconfig import Config
from holdfast.cluster.kubernetes.requests import ApiRequest
from holdfast.cluster.kubernetes.responses import error_from_status
from holdfast.cluster.kubernetes.retries import (
    DEFAULT_RETRY_LIMITS,
    FailedAttempt,
    RetryLimits,
    RetrySchedule,
    connection_error,
    is_final,
    is_untrusted,
    parse_retry_after,
)
from holdfast.cluster.kubernetes.subresources import HEARTBEAT_S, PROTOCOLS, ExecStream, refused
from holdfast.cluster.kubernetes.tls import Tls

Gate: TypeAlias = Callable[[], None]

# The peer is gone after three unanswered probes, sent after 20 s of silence, or after 50 s without an ACK.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 50_000}


class SendTracker:
    """Tracks whether the first byte of a request was sent; before that, the server can't have done anything."""

    def __init__(self, *, write: bool, gate: Gate | None) -> None:
        self._write = write
        self._gate = gate if write else None
        self.sent = False

    def mark_sent(self) -> None:
        if self.sent and self._write:
            # aiohttp repeats PUT and DELETE by itself when a reused connection breaks; the first may have succeeded.
            raise aiohttp.ServerDisconnectedError
        if self._gate:
            self._gate()
        self.sent = True


# The tracker of the request of the current task.
current_send: ContextVar[SendTracker] = ContextVar("departing")


class _Request(ClientRequest):
    """Calls the gate once the connection is open, so that no wait for a connection lies between gate and write."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        current_send.get().mark_sent()
        return await super().send(conn)


def open_pool() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0,  # every watch holds a connection for minutes; the transport limits the other requests
        keepalive_timeout=60.0,
        socket_factory=keepalive_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        request_class=_Request,
        headers={"User-Agent": f"holdfast/{__version__}"},
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**18,
    )


def abort_response(response: aiohttp.ClientResponse) -> None:
    """Drop a response without reading the rest: the connection can't be reused, so it is aborted at once.

    aiohttp would start a TLS shutdown, and nobody waits for the reply: an event loop that ends then leaks a socket.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that detects within a minute that the peer is gone."""
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if option := getattr(socket, name, None):  # not every system has all options
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened


# Far above the size limit of objects in etcd: a longer line does not come from an API server.
LONGEST_LINE = 64 * 2**20


class LineTooLong(ValueError):
    """The stream is not lines of JSON."""


class LineBuffer:
    """Joins the chunks of a watch stream into complete lines."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._pending: list[bytes] = []
        self._size = 0
        self._longest = longest

    @property
    def has_partial_line(self) -> bool:
        """Whether the last line is incomplete."""
        return bool(self._pending)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join((*self._pending, end))
            self._pending, self._size = [], 0
            if line.strip():
                yield line
        if rest:
            self._size += len(rest)
            if self._size > self._longest:
                raise LineTooLong(f"a line of more than {self._longest} bytes")
            self._pending.append(rest)


# verb, resource, HTTP status (0: no response), seconds until the response began
Observe: TypeAlias = Callable[[str, str, int, float], None]


class Timeouts(Struct, frozen=True, kw_only=True):
    connect_s: float = 10.0
    # The API server itself gives up on an ordinary request after 60 s.
    request_s: float = 65.0
    # A watch receives a bookmark about once a minute (KEP-956); longer silence means a dead connection.
    idle_timeout_s: float = 90.0


DEFAULT_TIMEOUTS = Timeouts()


class Transport:
    """Sends requests, with retries up to the limits of `patience`; raises a `ClusterError`."""

    def __init__(
        self,
        config: Config,
        *,
        rng: Random,
        now: Callable[[], datetime],
        observe: Observe | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        patience: RetryLimits = DEFAULT_RETRY_LIMITS,
        concurrency: int = 100,
    ) -> None:
        self.rng = rng
        self.source = config.source
        self._config = config
        self._now = now
        self._observe = observe
        self._timeouts = timeouts
        self._patience = patience
        self._slots = asyncio.Semaphore(concurrency)
        self._credentials = credentials(config, now)
        self._tls = Tls(config.server)
        self._pool = open_pool()

    async def send(self, request: ApiRequest, gate: Gate | None = None) -> bytes:
        """Send a request; returns the body of the response."""
        timeout = aiohttp.ClientTimeout(total=self._timeouts.request_s, sock_connect=self._timeouts.connect_s)
        response = await self._open(request, timeout, gate)
        async with response:
            try:
                return await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise connection_error(request.description, error, self._config) from None

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a streamed response, until the server ends the stream."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeouts.connect_s, sock_read=self._timeouts.idle_timeout_s
        )
        response = await self._open(request, timeout, None)
        try:
            async with aclosing(self._lines(request, response)) as lines:
                yield lines
        finally:
            abort_response(response)

    async def chunks(self, request: ApiRequest) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed response; unlike a watch, the stream may be silent for any time."""
        response = await self._open(
            request, aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s), None
        )
        try:
            while chunk := await self._chunk(request, response):
                yield chunk
        finally:
            abort_response(response)

    @asynccontextmanager
    async def attach(self, request: ApiRequest) -> AsyncIterator[ExecStream]:
        """Open a WebSocket, as for exec; without retries."""
        server, identity = self._config.server, await self._credentials.identity(_clock_s())
        context = self._tls.context(identity.certificate, _clock_s()) if server.url.startswith("https") else True
        token = current_send.set(SendTracker(write=request.write, gate=None))
        try:
            socket = await self._pool.ws_connect(
                self._url(request),
                protocols=PROTOCOLS,
                headers=self._headers(request, identity, streamed=False),
                max_msg_size=0,
                heartbeat=HEARTBEAT_S,
                ssl=context,
                server_hostname=server.name or None,
                proxy=server.proxy or None,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise error_from_status(
                request.description, code=error.status, body=refused(error.status), source=self._config.source
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(request.description, error, self._config) from None
        finally:
            current_send.reset(token)
        async with socket:
            yield ExecStream(socket, request.description)

    async def close(self) -> None:
        await self._pool.close()

    async def _lines(self, request: ApiRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        lines = LineBuffer()
        while chunk := await self._chunk(request, response):
            try:
                for line in lines.feed(chunk):
                    yield line
            except LineTooLong as error:
                raise Undecodable(
                    f"{request.description}: {error}: is {self._config.server.url} an API server?"
                ) from None
        if lines.has_partial_line:
            raise Unreachable(f"{request.description}: {self._config.server.url} broke off in the middle of a line")

    async def _chunk(self, request: ApiRequest, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(request.description, error, self._config) from None

    async def _open(
        self, request: ApiRequest, timeout: aiohttp.ClientTimeout, gate: Gate | None
    ) -> aiohttp.ClientResponse:
        """Retry until the first successful response; its body is not read yet."""
        schedule = RetrySchedule(self._patience, self.rng)
        has_renewed = False
        while True:
            identity = await self._credentials.identity(_clock_s())
            tracker = SendTracker(write=request.write, gate=gate)
            try:
                async with self._slots:
                    response = await self._attempt(request, identity, tracker, timeout)
                if response.status < 300:
                    return response
                error, failure = await self._error_response(request, response)
            except (aiohttp.ClientError, TimeoutError, OSError) as cause:
                error, failure = self._connection_failed(request, cause, tracker)
            if failure.status == 401 and not has_renewed:
                has_renewed = True
                await self._credentials.renew(identity, _clock_s())
                continue
            wait_s = schedule.next_wait_s(failure)
            if wait_s is None:
                raise error
            await asyncio.sleep(wait_s)

    async def _attempt(
        self, request: ApiRequest, identity: RequestIdentity, tracker: SendTracker, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        server = self._config.server
        started_s, status = _clock_s(), 0
        context = self._tls.context(identity.certificate, started_s) if server.url.startswith("https") else True
        token = current_send.set(tracker)
        try:
            response = await self._pool.request(
                request.method,
                self._url(request),
                headers=self._headers(request, identity, streamed=timeout.total is None),
                data=request.body or None,
                allow_redirects=False,
                timeout=timeout,
                ssl=context,
                server_hostname=server.name or None,
                proxy=server.proxy or None,
            )
            status = response.status
            return response
        finally:
            current_send.reset(token)
            if self._observe:
                self._observe(request.verb, request.resource, status, _clock_s() - started_s)

    def _url(self, request: ApiRequest) -> URL:
        return URL(self._config.server.url + request.path, encoded=True).with_query(request.query)

    def _headers(self, request: ApiRequest, identity: RequestIdentity, *, streamed: bool) -> list[tuple[str, str]]:
        headers = [("Accept", request.accept), *self._config.user.impersonation]
        if request.body:
            headers.append(("Content-Type", request.content_type))
        if streamed:
            # A watch is many small lines: compressing each line costs both sides more than it saves.
            headers.append(("Accept-Encoding", "identity"))
        if identity.authorization:
            headers.append(("Authorization", identity.authorization))
        return headers

    async def _error_response(
        self, request: ApiRequest, response: aiohttp.ClientResponse
    ) -> tuple[ClusterError, FailedAttempt]:
        async with response:
            body = await response.read()
        wait_s = parse_retry_after(response.headers.get("Retry-After"), self._now)
        error = error_from_status(
            request.description, code=response.status, body=body, source=self._config.source, retry_after_s=wait_s
        )
        return error, FailedAttempt(write=request.write, sent=True, status=response.status, retry_after_s=wait_s)

    def _connection_failed(
        self, request: ApiRequest, cause: BaseException, tracker: SendTracker
    ) -> tuple[ClusterError, FailedAttempt]:
        if is_untrusted(cause):
            self._tls.renew(_clock_s())  # the CA may have been replaced; the next request uses the new CA
        error = connection_error(request.description, cause, self._config)
        return error, FailedAttempt(write=request.write, sent=tracker.sent, final=is_final(cause))


def credentials(config: Config, now: Callable[[], datetime]) -> CredentialSource:
    """A static token or password takes precedence over a plugin, as with kubectl."""
    user = config.user
    if user.plugin and not (user.token or user.username):
        return ExecPluginCredentials(user.plugin, config.server, now=now)
    return StaticCredentials(user)


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
