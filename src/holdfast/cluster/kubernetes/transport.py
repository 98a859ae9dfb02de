"""HTTP to one API server: one pool, credentials that are renewed, retries that never repeat a write by accident."""

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
from holdfast.cluster.kubernetes.credentials import Credentials, ExecPluginCredentials, Identity, StaticCredentials
from holdfast.cluster.kubernetes.kubeconfig import Config
from holdfast.cluster.kubernetes.requests import ApiRequest
from holdfast.cluster.kubernetes.responses import error_from_status
from holdfast.cluster.kubernetes.retries import (
    DEFAULT_PATIENCE,
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

# The connections to one API server, as aiohttp keeps them, with what we need to know of them.

Gate: TypeAlias = Callable[[], None]

# Three unanswered probes after twenty quiet seconds, or nothing acknowledged for fifty: the other side is gone.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 50_000}


class SendTracker:
    """The moment when a request's first byte leaves; before it nothing can have happened on the server."""

    def __init__(self, *, write: bool, gate: Gate | None) -> None:
        self._write = write
        self._gate = gate if write else None
        self.sent = False

    def mark_sent(self) -> None:
        if self.sent and self._write:
            # aiohttp repeats PUT and DELETE by itself when a reused connection breaks; the first may have worked.
            raise aiohttp.ServerDisconnectedError
        if self._gate:
            self._gate()
        self.sent = True


# Of the request that the running task is making.
current_send: ContextVar[SendTracker] = ContextVar("departing")


class _Request(ClientRequest):
    """Leaves when the connection stands, so that no wait for one lies between the gate and the write."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        current_send.get().mark_sent()
        return await super().send(conn)


def open_pool() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0,  # every watch holds a connection for minutes; the transport counts the other requests
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
    """Whoever leaves early is not interested in the rest: the connection can't be used again, and is gone at once.

    aiohttp would say goodbye over TLS first, and nobody waits for the answer: a loop that ends then leaves a socket.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within a minute when the other side is gone without a word."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if option := getattr(socket, name, None):  # not every system has all of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


# A watch's lines, whole again however the network cut them.

# Far above any object that etcd takes: a line beyond it is not a line of the API server.
LONGEST_LINE = 64 * 2**20


class LineTooLong(ValueError):
    """What comes in is not lines of JSON."""


class LineBuffer:
    """Feed it chunks; it gives the lines that are complete."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._pending: list[bytes] = []
        self._size = 0
        self._longest = longest

    @property
    def has_partial_line(self) -> bool:
        """Has a line begun that has not ended?"""
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


# verb, resource, HTTP status (0: no answer), seconds until the answer began
Observe: TypeAlias = Callable[[str, str, int, float], None]


class Timeouts(Struct, frozen=True, kw_only=True):
    connect_s: float = 10.0
    # The API server itself gives up on an ordinary request after 60 s.
    request_s: float = 65.0
    # A watch hears a bookmark about once a minute; silence beyond that is a connection that died unnoticed.
    idle_timeout_s: float = 90.0


DEFAULT_TIMEOUTS = Timeouts()


class Transport:
    """Sends what is asked until the server has answered or patience is used up; raises a `ClusterError`."""

    def __init__(
        self,
        config: Config,
        *,
        rng: Random,
        now: Callable[[], datetime],
        observe: Observe | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        patience: RetryLimits = DEFAULT_PATIENCE,
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

    async def send(self, ask: ApiRequest, gate: Gate | None = None) -> bytes:
        """The body of the answer."""
        timeout = aiohttp.ClientTimeout(total=self._timeouts.request_s, sock_connect=self._timeouts.connect_s)
        response = await self._open(ask, timeout, gate)
        async with response:
            try:
                return await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise connection_error(ask.description, error, self._config) from None

    @asynccontextmanager
    async def stream(self, ask: ApiRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on, until the server ends it."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeouts.connect_s, sock_read=self._timeouts.idle_timeout_s
        )
        response = await self._open(ask, timeout, None)
        try:
            async with aclosing(self._lines(ask, response)) as lines:
                yield lines
        finally:
            abort_response(response)

    async def chunks(self, ask: ApiRequest) -> AsyncGenerator[bytes, None]:
        """An answer that goes on, as it comes; unlike a watch it may be silent for as long as it likes."""
        response = await self._open(ask, aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s), None)
        try:
            while chunk := await self._chunk(ask, response):
                yield chunk
        finally:
            abort_response(response)

    @asynccontextmanager
    async def attach(self, ask: ApiRequest) -> AsyncIterator[ExecStream]:
        """A conversation instead of an answer; it is not tried again."""
        server, identity = self._config.server, await self._credentials.identity(_clock_s())
        context = self._tls.context(identity.certificate, _clock_s()) if server.url.startswith("https") else True
        token = current_send.set(SendTracker(write=ask.write, gate=None))
        try:
            socket = await self._pool.ws_connect(
                self._url(ask),
                protocols=PROTOCOLS,
                headers=self._headers(ask, identity, streamed=False),
                max_msg_size=0,
                heartbeat=HEARTBEAT_S,
                ssl=context,
                server_hostname=server.name or None,
                proxy=server.proxy or None,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise error_from_status(
                ask.description, code=error.status, body=refused(error.status), source=self._config.source
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(ask.description, error, self._config) from None
        finally:
            current_send.reset(token)
        async with socket:
            yield ExecStream(socket, ask.description)

    async def close(self) -> None:
        await self._pool.close()

    async def _lines(self, ask: ApiRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        lines = LineBuffer()
        while chunk := await self._chunk(ask, response):
            try:
                for line in lines.feed(chunk):
                    yield line
            except LineTooLong as error:
                raise Undecodable(f"{ask.description}: {error}: is {self._config.server.url} an API server?") from None
        if lines.has_partial_line:
            raise Unreachable(f"{ask.description}: {self._config.server.url} broke off in the middle of a line")

    async def _chunk(self, ask: ApiRequest, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(ask.description, error, self._config) from None

    async def _open(self, ask: ApiRequest, timeout: aiohttp.ClientTimeout, gate: Gate | None) -> aiohttp.ClientResponse:
        """The first good answer, with its body still to be read."""
        schedule = RetrySchedule(self._patience, self.rng)
        renewed = False
        while True:
            identity = await self._credentials.identity(_clock_s())
            departure = SendTracker(write=ask.write, gate=gate)
            try:
                async with self._slots:
                    response = await self._attempt(ask, identity, departure, timeout)
                if response.status < 300:
                    return response
                error, failure = await self._refused(ask, response)
            except (aiohttp.ClientError, TimeoutError, OSError) as lost:
                error, failure = self._connection_lost(ask, lost, departure)
            if failure.status == 401 and not renewed:
                renewed = True
                await self._credentials.renew(identity, _clock_s())
                continue
            wait_s = schedule.next_wait_s(failure)
            if wait_s is None:
                raise error
            await asyncio.sleep(wait_s)

    async def _attempt(
        self, ask: ApiRequest, identity: Identity, departure: SendTracker, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        server = self._config.server
        started_s, status = _clock_s(), 0
        context = self._tls.context(identity.certificate, started_s) if server.url.startswith("https") else True
        token = current_send.set(departure)
        try:
            response = await self._pool.request(
                ask.method,
                self._url(ask),
                headers=self._headers(ask, identity, streamed=timeout.total is None),
                data=ask.body or None,
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
                self._observe(ask.verb, ask.resource, status, _clock_s() - started_s)

    def _url(self, ask: ApiRequest) -> URL:
        return URL(self._config.server.url + ask.path, encoded=True).with_query(ask.query)

    def _headers(self, ask: ApiRequest, identity: Identity, *, streamed: bool) -> list[tuple[str, str]]:
        headers = [("Accept", ask.accept), *self._config.user.impersonation]
        if ask.body:
            headers.append(("Content-Type", ask.content_type))
        if streamed:
            # A watch is many small lines: compressing each costs both sides more than it saves.
            headers.append(("Accept-Encoding", "identity"))
        if identity.authorization:
            headers.append(("Authorization", identity.authorization))
        return headers

    async def _refused(self, ask: ApiRequest, response: aiohttp.ClientResponse) -> tuple[ClusterError, FailedAttempt]:
        async with response:
            body = await response.read()
        wait_s = parse_retry_after(response.headers.get("Retry-After"), self._now)
        error = error_from_status(
            ask.description, code=response.status, body=body, source=self._config.source, retry_after_s=wait_s
        )
        return error, FailedAttempt(write=ask.write, sent=True, status=response.status, retry_after_s=wait_s)

    def _connection_lost(
        self, ask: ApiRequest, lost: BaseException, departure: SendTracker
    ) -> tuple[ClusterError, FailedAttempt]:
        if is_untrusted(lost):
            self._tls.renew(_clock_s())  # perhaps the authority has been replaced; the next request will see it
        error = connection_error(ask.description, lost, self._config)
        return error, FailedAttempt(write=ask.write, sent=departure.sent, final=is_final(lost))


def credentials(config: Config, now: Callable[[], datetime]) -> Credentials:
    """A token or password that is written down comes before a plugin, as with kubectl."""
    user = config.user
    if user.plugin and not (user.token or user.username):
        return ExecPluginCredentials(user.plugin, config.server, now=now)
    return StaticCredentials(user)


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
