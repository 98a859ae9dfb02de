"""Whose the other end of a connection is: real sockets of two users."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import pytest
from aiohttp import web

from holdfast.api.reports import ProgressReport
from holdfast.peers import is_own_client, is_own_server
from holdfast.sidecar.http import progress_app, serve_app
from holdfast.sidecar.progress import NAMES, MetricsScraper

NOBODY = 65534
POST = b'POST /progress HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 12\r\n\r\n{"epoch": 3}'


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Sockets that are made inside the block are another user's. Without root, this process is the other user."""

    @contextlib.contextmanager
    def as_another_user() -> Iterator[None]:
        if os.geteuid() != 0:
            own = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: own + 1)
            yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    return as_another_user


@pytest.fixture(params=["127.0.0.1", "127.9.8.7", "::1"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def client(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


async def post(made: socket.socket, host: str, port: int) -> int:
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, (host, port))
    reader, writer = await asyncio.open_connection(sock=made)
    writer.write(POST)
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def test_only_the_pods_own_user_may_post_progress_where_others_share_the_network(
    host: str, foreign: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    told: list[ProgressReport] = []
    async with serve_app(progress_app(told.append, lambda: 7.0, shared=True), host, 0) as port:
        assert await post(client(host), host, port) == 204
        assert told == [ProgressReport(epoch=3, at=7.0)]
        with foreign():
            made = client(host)
        assert await post(made, host, port) == 403
    assert len(told) == 1
    async with serve_app(progress_app(told.append, lambda: 7.0), host, 0) as port:
        with foreign():
            made = client(host)
        assert await post(made, host, port) == 204, "the containers of a pod may run as different users"


async def test_a_client_of_both_families_is_known_by_its_user() -> None:
    told: list[ProgressReport] = []
    async with serve_app(progress_app(told.append, lambda: 7.0, shared=True), "127.0.0.1", 0) as port:
        made = socket.socket(socket.AF_INET6)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        assert await post(made, "::ffff:127.0.0.1", port) == 204


async def test_a_client_that_has_closed_its_socket_has_no_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = socket.create_connection(server.getsockname())
        ends = made.getsockname(), server.getsockname()
        assert is_own_client(*ends)
        made.close()
        assert not is_own_client(*ends)


@contextlib.asynccontextmanager
async def metrics(listener: socket.socket) -> AsyncIterator[int]:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="training_epoch 4\n")

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        yield listener.getsockname()[1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("everywhere", [False, True])
async def test_metrics_of_another_users_server_are_not_the_trainings(
    host: str, everywhere: bool, foreign: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    unspecified = "::" if ":" in host else "0.0.0.0"

    async def scraped(listener: socket.socket, *, shared: bool) -> list[int]:
        told: list[ProgressReport] = []
        listener.bind((unspecified if everywhere else host, 0))
        async with metrics(listener) as port, aiohttp.ClientSession() as session:
            await MetricsScraper([host], port, NAMES, told.append, lambda: 7.0, shared=shared).read(session)
        return [entry.epoch for entry in told]

    assert await scraped(client(host), shared=True) == [4]
    with foreign():
        other = client(host)
    assert await scraped(other, shared=False) == [4]
    with foreign():
        other = client(host)
    assert await scraped(other, shared=True) == []


def test_where_nothing_listens_nobody_elses_server_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert is_own_server("127.0.0.1", port)
