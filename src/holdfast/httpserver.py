"""The HTTP servers of holdfast. Each server bounds what unknown clients can use up: connections, memory and time.

A connection has to send a whole request head within `FIRST_REQUEST_S`, TLS handshake included, and is closed when it
sends no other request for `IDLE_S`. A server at its connection limit closes the oldest connection without a request,
then the connection that is idle for the longest time, so that a new client is always served. A connection whose request
is being answered, such as a watch, is never closed for another connection.
"""

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import resource
import socket
import ssl
from asyncio import sslproto
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from msgspec import Struct

from holdfast.errors import HoldfastError

FIRST_REQUEST_S = 10.0
# Longer than Prometheus and the kubelet wait between two requests.
IDLE_S = 75.0
# For a client that still sends a body which the server does not read, so that the client gets its answer first.
LINGERING_S = 1.0
# After the last of many connections, until its buffers are freed.
MEMORY_S = 1.0
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE_S = 0.1
# asyncio gives each TLS connection a buffer of 256 KiB, 1 GB for 4,000 sidecars; a TLS record has at most 16 KiB.
sslproto.SSLProtocol.max_size = 32 * 1024

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BadBody(HoldfastError):
    """The body of a request can't be read, and the client is to blame; `status` is the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CannotListen(HoldfastError):
    """A port is not free, or this process may not listen on it."""


class Limits(Struct, frozen=True, kw_only=True):
    connections: int = 256
    fresh: int = 128
    """Connections that have not sent a request yet. With TLS each connection costs some 30 KB."""
    per_peer: int = 128
    """Connections of one address. Loopback addresses are exempt: all users of a host share them."""


DEFAULT_LIMITS = Limits()


def raise_descriptor_limit() -> None:
    """Let this process have as many connections as the system allows: the soft limit is often 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # "unlimited" is more than the kernel takes on some systems
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def read_body(request: web.Request, within_s: float) -> bytes:
    """The whole body, bounded by `client_max_size` of the application; a compressed body is refused unread."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise BadBody(400, "the body is compressed: send it without a Content-Encoding")
    try:
        async with asyncio.timeout(within_s):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise BadBody(413, f"the body is larger than {request.client_max_size} bytes") from None
    except TimeoutError:
        raise BadBody(408, f"the body did not arrive within {within_s:g} s") from None
    except (web.RequestPayloadError, HttpProcessingError, ConnectionError):
        raise BadBody(400, "the body is cut short, or not as its headers say") from None


@contextlib.asynccontextmanager
async def listening(
    app: web.Application,
    *,
    host: str | None,
    port: int,
    limits: Limits = DEFAULT_LIMITS,
    tls: ssl.SSLContext | None = None,
    shutdown_timeout_s: float = 1.0,
    handler_cancellation: bool = False,
) -> AsyncIterator[int]:
    """Serve `app` inside the block; yields the port, chosen by the system when `port` is 0.

    Raises the `OSError` of a port that is not free.
    """
    connections = _Connections(limits)
    app.middlewares.insert(0, _track_requests)
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=shutdown_timeout_s, handler_cancellation=handler_cancellation
    )
    await runner.setup()
    try:
        assert runner.server is not None
        sockets = await _bind(host, port)
        try:
            acceptor = _Acceptor(runner.server, connections, tls)
            accepting = [asyncio.create_task(acceptor.accept(each), name="accept") for each in sockets]
            try:
                yield sockets[0].getsockname()[1]
            finally:
                for task in accepting:
                    task.cancel()
                await asyncio.wait(accepting)
        finally:
            for each in sockets:
                each.close()
    finally:
        await runner.cleanup()
        connections.close()


class _Connection:
    """One accepted socket. `transport` is there once the TLS handshake is done."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.transport: asyncio.BaseTransport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class _Connections:
    """The connections of one server by state, each group in the order in which connections are closed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Other files and sockets of this process need descriptors too.
        self._max_connections = min(limits.connections, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._fresh: OrderedDict[_Connection, None] = OrderedDict()
        self._idle: OrderedDict[_Connection, None] = OrderedDict()
        self._busy: set[_Connection] = set()
        self._peers: Counter[str] = Counter()
        self._reached_fresh_limit = False

    def admit(self, peer: str) -> _Connection | None:
        """A connection from `peer`; None when no connection can be closed for it, since all are being answered."""
        limits = self._limits
        while not _is_loopback(peer) and self._peers[peer] >= limits.per_peer:
            if not self.evict(peer):
                return None
        while len(self._fresh) >= limits.fresh or self._peers.total() >= self._max_connections:
            if not self.evict():
                return None
        connection = _Connection(peer)
        self._reached_fresh_limit |= len(self._fresh) + 1 >= limits.fresh
        self._peers[peer] += 1
        self._fresh[connection] = None
        self._close_after(connection, FIRST_REQUEST_S)
        return connection

    def evict(self, peer: str | None = None) -> bool:
        """Close the least useful connection, of one peer or of all; False when there is none to close."""
        for group in (self._fresh, self._idle):
            for connection in group:
                if peer is None or connection.peer == peer:
                    self._abort(connection)
                    return True
        return False

    def request_began(self, connection: _Connection) -> None:
        if self._remove(connection):
            self._peers[connection.peer] += 1
            self._busy.add(connection)

    def request_ended(self, connection: _Connection) -> None:
        """The answer may still have to be written: a client that does not read it is closed like an idle one."""
        if self._remove(connection):
            self._peers[connection.peer] += 1
            self._idle[connection] = None
            self._close_after(connection, IDLE_S)

    def closed(self, connection: _Connection) -> None:
        self._remove(connection)

    def close(self) -> None:
        for connection in (*self._fresh, *self._idle, *self._busy):
            self._abort(connection)

    def _close_after(self, connection: _Connection, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        connection.timer = loop.call_later(within_s, self._abort, connection)

    def _abort(self, connection: _Connection) -> None:
        self._remove(connection)
        connection.abort()

    def _remove(self, connection: _Connection) -> bool:
        """Whether the connection was registered."""
        if connection in self._busy:
            self._busy.remove(connection)
        elif connection in self._fresh:
            del self._fresh[connection]
        elif connection in self._idle:
            del self._idle[connection]
        else:
            return False
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None
        self._peers[connection.peer] -= 1
        if not self._peers[connection.peer]:
            del self._peers[connection.peer]
        if self._reached_fresh_limit and not self._fresh:
            self._reached_fresh_limit = False
            asyncio.get_running_loop().call_later(MEMORY_S, _return_memory)
        return True


class _Handler(web.RequestHandler):
    """aiohttp's request handler, which registers the start and the end of its connection."""

    def __init__(self, server: web.Server, connections: _Connections, connection: _Connection) -> None:
        options: dict[str, Any] = {"access_log": None, "auto_decompress": False, "lingering_time": LINGERING_S}
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.connections = connections
        self.connection = connection

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A request that is not HTTP is the client's fault: unknown clients must not be able to fill the log."""
        if isinstance(kw.get("exc_info"), HttpProcessingError):
            log.debug("bad request", peer=self.connection.peer)
        else:
            super().log_exception(*args, **kw)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.closed(self.connection)
        super().connection_lost(exc)


class _Acceptor:
    """Accepts connections. asyncio's own server shows a connection only after its TLS handshake."""

    def __init__(self, server: web.Server, connections: _Connections, tls: ssl.SSLContext | None) -> None:
        self._server = server
        self._connections = connections
        self._tls = tls

    async def accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._connections.evict()
                    log.warning("can't accept a connection", reason=error.strerror)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._admit(accepted, str(address[0]))
            await asyncio.sleep(0)  # an accept that does not wait must not starve other tasks

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        connection = self._connections.admit(peer)
        if connection is None:
            accepted.close()
            return
        connection.opening = asyncio.create_task(self._open(accepted, connection), name="open connection")
        # A task that is cancelled before its first step has not taken the socket.
        connection.opening.add_done_callback(lambda task: accepted.close() if task.cancelled() else None)

    async def _open(self, accepted: socket.socket, connection: _Connection) -> None:
        loop, handler = asyncio.get_running_loop(), _Handler(self._server, self._connections, connection)
        within_s = FIRST_REQUEST_S if self._tls is not None else None
        try:
            await loop.connect_accepted_socket(
                lambda: handler, accepted, ssl=self._tls, ssl_handshake_timeout=within_s, ssl_shutdown_timeout=within_s
            )
        except (OSError, asyncio.CancelledError) as error:
            self._connections.closed(connection)
            # asyncio's frames and the error refer to each other, and to buffers that only a full collection would free.
            error.__traceback__ = None
            log.debug("no TLS connection", peer=connection.peer, reason=type(error).__name__)


@web.middleware
async def _track_requests(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    protocol = request.protocol
    assert isinstance(protocol, _Handler)
    protocol.connections.request_began(protocol.connection)
    try:
        return await handler(request)
    finally:
        protocol.connections.request_ended(protocol.connection)


async def _bind(host: str | None, port: int) -> list[socket.socket]:
    """A listening socket for each address of `host`; None means every address of this host."""
    loop, sockets = asyncio.get_running_loop(), list[socket.socket]()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sockets.append(each := socket.socket(family, kind, protocol))
            except OSError:
                continue  # this host has no IPv6
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = sockets[0].getsockname()[1] if len(sockets) > 1 else port
            each.bind((address[0], chosen, *address[2:]))
            each.listen(128)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _return_memory() -> None:
    """Return freed memory to the system: the C library retains what many connections needed."""
    with contextlib.suppress(AttributeError):  # glibc has malloc_trim; other C libraries return memory by themselves
        ctypes.CDLL(None).malloc_trim(0)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
