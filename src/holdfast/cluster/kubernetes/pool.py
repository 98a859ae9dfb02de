"""The connections to one API server, as aiohttp keeps them, with what we need to know of them."""

import socket
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection

from holdfast import __version__

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
