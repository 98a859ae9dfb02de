"""What strangers can use up of a server: real sockets against the server that all parts of holdfast use."""

import asyncio
import contextlib
import gc
import resource
import socket
import ssl
import subprocess
import sys
from asyncio import sslproto
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp import web

from holdfast import httpserver
from holdfast.cluster.certificate import ServerIdentity, self_signed_identity
from holdfast.httpserver import Limits, listening
from tests.runtime.things import until

HOST = "127.0.0.1"
SMALL = Limits(connections=8, fresh=6, per_peer=4)


class Served:
    """A server with a page, and with a stream that goes on until it is told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.streams = 0

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/", self._page)
        app.router.add_get("/watch", self._watch)
        return app

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"begun\n")
        self.streams += 1
        await self.end.wait()
        await stream.write(b"ended\n")
        return stream


@contextlib.asynccontextmanager
async def serving(limits: Limits, *, identity: ServerIdentity | None = None) -> AsyncIterator[tuple[Served, int]]:
    served = Served()
    tls = identity.context if identity is not None else None
    async with listening(served.application(), host=HOST, port=0, limits=limits, tls=tls) as port:
        yield served, port


@contextlib.contextmanager
def connected(port: int, count: int) -> Iterator[list[socket.socket]]:
    sockets = [socket.create_connection((HOST, port), timeout=10) for _ in range(count)]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


async def page(port: int, identity: ServerIdentity | None = None) -> str:
    context = ssl.create_default_context(cadata=identity.authority.decode()) if identity is not None else None
    connector = aiohttp.TCPConnector(ssl=context or True)
    scheme = "https" if identity is not None else "http"
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"{scheme}://{HOST}:{port}/") as got:
        return await got.text()


def is_closed(each: socket.socket) -> bool:
    each.setblocking(False)
    try:
        while each.recv(1000):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def open_ones(sockets: list[socket.socket]) -> int:
    return sum(not is_closed(each) for each in sockets)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"\x16\x03\x01\x02"])
async def test_connections_that_ask_nothing_are_closed_for_a_client(secure: bool, begun: bytes) -> None:
    identity = self_signed_identity(HOST) if secure else None
    async with serving(SMALL, identity=identity) as (_, port):
        with connected(port, 40) as sockets:
            for each in sockets:
                with contextlib.suppress(ConnectionError):
                    each.sendall(begun)
            assert await page(port, identity) == "ok"
            await until(lambda: open_ones(sockets) < SMALL.fresh, "the oldest connections are closed")


@pytest.mark.parametrize("secure", [False, True])
async def test_a_connection_that_brings_no_request_in_time_is_closed(
    secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpserver, "FIRST_REQUEST_S", 0.05)
    async with serving(SMALL, identity=self_signed_identity(HOST) if secure else None) as (_, port):
        with connected(port, 3) as sockets:
            sockets[0].sendall(b"GET / HTTP/1.1\r\nHost: ")
            await until(lambda: not open_ones(sockets), "they are closed")


async def test_a_connection_that_brings_no_other_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpserver, "IDLE_S", 0.05)
    async with serving(SMALL) as (_, port):
        with connected(port, 1) as (one,):
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT")
            one.setblocking(False)
            loop, answer = asyncio.get_running_loop(), b""
            while part := await loop.sock_recv(one, 1000):
                answer += part
            assert (answer.count(b"200 OK"), answer[-2:]) == (1, b"ok")


async def test_a_request_that_is_being_answered_is_never_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpserver, "FIRST_REQUEST_S", 0.05)
    monkeypatch.setattr(httpserver, "IDLE_S", 0.05)
    async with (
        serving(SMALL) as (served, port),
        aiohttp.ClientSession() as session,
        session.get(f"http://{HOST}:{port}/watch") as watch,
    ):
        with connected(port, 20) as sockets:
            await until(lambda: not open_ones(sockets), "the others are closed")
        served.end.set()
        assert await watch.read() == b"begun\nended\n"


async def test_a_server_whose_connections_are_all_in_use_refuses_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(SMALL) as (served, port), contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(SMALL.connections):
            await stack.enter_async_context(session.get(f"http://{HOST}:{port}/watch"))
        with pytest.raises(aiohttp.ClientError):
            await page(port)
        served.end.set()
        await until(lambda: served.streams == SMALL.connections, "all were served")
        assert await page(port) == "ok"


async def test_an_address_has_a_share_of_the_connections_and_closes_only_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Loopback addresses are the only ones that a test has.
    monkeypatch.setattr(httpserver, "_is_loopback", lambda address: False)
    async with serving(SMALL) as (_, port):
        with connected(port, 1) as (other,), contextlib.ExitStack() as stack:
            await asyncio.sleep(0)
            sockets = [
                stack.enter_context(socket.create_connection((HOST, port), 10, source_address=("127.0.0.2", 0)))
                for _ in range(20)
            ]
            await until(lambda: open_ones(sockets) == SMALL.per_peer, "the address keeps its share")
            assert not is_closed(other)


async def test_connections_leave_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpserver, "MEMORY_S", 0.0)
    trimmed: list[bool] = []
    monkeypatch.setattr(httpserver, "_return_memory", lambda: trimmed.append(True))
    identity = self_signed_identity(HOST)
    async with serving(SMALL, identity=identity) as (_, port):
        gc.collect()
        gc.disable()
        try:
            with connected(port, 30) as sockets:
                await until(lambda: open_ones(sockets) <= SMALL.fresh, "the oldest are closed")
            await until(lambda: not _tls_connections(), "nothing refers to a closed connection")
        finally:
            gc.enable()
        await until(lambda: trimmed, "memory is given back")


def _tls_connections() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, sslproto.SSLProtocol)]


async def test_a_process_that_has_no_descriptor_left_closes_an_idle_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    accept, refusals = loop.sock_accept, iter([OSError(24, "Too many open files")])

    async def scarce(listener: socket.socket) -> tuple[socket.socket, object]:
        accepted = await accept(listener)
        for error in refusals if served.streams else ():
            accepted[0].close()
            raise error
        return accepted

    monkeypatch.setattr(loop, "sock_accept", scarce)
    async with serving(Limits()) as (served, port):
        with connected(port, 2) as sockets:
            await asyncio.sleep(0.05)
            served.streams = 1
            with contextlib.suppress(aiohttp.ClientError):
                await page(port)
            await until(lambda: open_ones(sockets) == 1, "one makes room")
            assert await page(port) == "ok"


def test_a_process_takes_all_descriptors_that_the_system_allows() -> None:
    script = (
        "import resource\n"
        "from holdfast.httpserver import raise_descriptor_limit\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))\n"
        "raise_descriptor_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(said.stdout) == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
