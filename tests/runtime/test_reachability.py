"""Whether something answers at an address, with real connections."""

import asyncio
import errno
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.runtime import reachability
from holdfast.runtime.reachability import is_address, try_connect

# A program that listens and then stands still, as one that is stopped does: its kernel takes connections all the same.
STOPPED = """
import os, signal, socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def full() -> Iterator[tuple[str, int]]:
    """A server that can take no more connections: attempts are answered by nothing."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = server.getsockname()
        waiting = []
        for _ in range(8):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)
        yield address
        for client in waiting:
            client.close()


async def test_a_connection_that_is_taken_is_an_answer_and_nothing_is_sent() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        assert await try_connect(server.sockets[0].getsockname()) == "accepted"
        assert await heard.get() == b""


async def test_a_program_that_stands_still_is_no_dead_machine() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", STOPPED, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        assert await try_connect(("127.0.0.1", port)) == "accepted"
    finally:
        process.kill()
        await process.wait()


async def test_a_port_that_nobody_listens_on_is_refused() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = server.getsockname()
    assert await try_connect(address) == "refused"


async def test_an_address_from_which_nothing_comes_is_unreachable(
    full: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "CONNECT_S", 0.2)
    assert await try_connect(full) == "unreachable"


async def test_an_answer_counts_that_came_while_this_process_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachability, "CONNECT_S", 0.02)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        asking = asyncio.create_task(try_connect(server.getsockname()))
        while not asking.done():
            await asyncio.sleep(0)
            time.sleep(0.05)  # noqa: ASYNC251 - the loop is to stand still
        assert await asking == "accepted"


@pytest.mark.parametrize(
    ("errors", "answer", "attempts"),
    [
        ([errno.EHOSTUNREACH, errno.ENETUNREACH], "unreachable", 2),
        ([errno.EHOSTUNREACH, errno.ECONNREFUSED], "refused", 2),
        ([errno.ECONNREFUSED], "refused", 1),
        ([errno.EMFILE], "failed", 1),
        ([errno.EADDRNOTAVAIL], "failed", 1),
        ([errno.EHOSTUNREACH, errno.EPERM], "failed", 2),
    ],
)
async def test_what_the_kernel_says_of_an_attempt(
    monkeypatch: pytest.MonkeyPatch, errors: list[int], answer: str, attempts: int
) -> None:
    asked = []

    async def open_connection(*address: object) -> None:
        asked.append(address)
        raise OSError(errors[len(asked) - 1], "so")

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    assert await try_connect(("192.0.2.1", 10250)) == answer
    assert len(asked) == attempts


@pytest.mark.parametrize(
    ("host", "is_one"), [("10.0.0.1", True), ("fd00::1", True), ("node-1", False), ("", False), ("10.0.0", False)]
)
def test_only_addresses_are_asked(host: str, is_one: bool) -> None:
    assert is_address(host) == is_one
