"""What a sidecar answers, and what it does not take."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from holdfast.api.reports import NodeNotice, ProgressReport
from holdfast.httpserver import CannotListen
from holdfast.sidecar import http
from holdfast.sidecar.http import (
    LARGEST_BODY,
    LOOPBACK,
    MOST_LINES,
    AttemptState,
    probe_app,
    progress_app,
    serve_app,
)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def get(session: aiohttp.ClientSession, port: int, path: str) -> tuple[int, str]:
    async with session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_the_probes_say_how_the_attempt_stands(session: aiohttp.ClientSession) -> None:
    standing = AttemptState()
    saved = asyncio.Event()

    async def before_stop() -> str:
        await saved.wait()
        return "saved"

    async with serve_app(probe_app(standing, before_stop, lambda _: "", "uid-1"), LOOPBACK, 0) as port:
        assert (await get(session, port, "/uid-1/started"))[0] == 503
        assert await get(session, port, "/uid-1/live") == (200, "ok\n")
        standing.is_started = True
        assert (await get(session, port, "/uid-1/started"))[0] == 200
        asked = asyncio.create_task(get(session, port, "/uid-1/prestop"))
        await asyncio.sleep(0)
        saved.set()
        assert await asked == (200, "saved\n")
        standing.stop = "EarlyStopped"
        assert (await get(session, port, "/uid-1/live"))[0] == 200, "it has not saved yet"
        standing.is_saved = True
        assert await get(session, port, "/uid-1/live") == (500, "the training is to end: EarlyStopped\n")
        standing.is_over = True
        assert await get(session, port, "/uid-1/live") == (500, "this attempt is over\n")
        for path in ("/progress", "/live", "/prestop", "/uid-2/live", "//live"):
            assert (await get(session, port, path))[0] == 404


async def test_a_notice_of_the_nodes_agent_is_taken_and_anything_else_is_refused_in_a_sentence(
    session: aiohttp.ClientSession,
) -> None:
    noticed: list[NodeNotice] = []

    async def never() -> str:
        raise AssertionError

    def on_notice(notice: NodeNotice) -> str:
        noticed.append(notice)
        return "the training is asked to save"

    async with serve_app(probe_app(AttemptState(), never, on_notice, "uid-1"), LOOPBACK, 0) as port:
        for path, body, status, words in (
            ("/uid-1/notice", b'{"node": "n1", "deadline": 1763476202}', 202, "the training is asked to save"),
            ("/uid-1/notice", b"", 400, "the notice can't be read"),
            ("/uid-1/notice", b'{"node": "n1\\nn2", "deadline": 1}', 400, "at `$.node`"),
            ("/uid-1/notice", b'{"node": "n1"}', 400, "missing required field `deadline`"),
            ("/uid-1/notice", b'{"node": "' + b"n" * 2000 + b'", "deadline": 1}', 413, "larger than 1024 bytes"),
            ("/uid-2/notice", b'{"node": "n1", "deadline": 1}', 404, "Not Found"),
        ):
            async with session.post(f"http://127.0.0.1:{port}{path}", data=body) as response:
                assert response.status == status
                assert words in await response.text()
        assert (await get(session, port, "/uid-1/notice"))[0] == 405
    assert noticed == [NodeNotice(node="n1", deadline=1763476202.0)]


@pytest.fixture
async def told() -> list[ProgressReport]:
    return []


@pytest.fixture
async def url(told: list[ProgressReport]) -> AsyncIterator[str]:
    async with serve_app(progress_app(told.append, lambda: 7.0), LOOPBACK, 0) as port:
        yield f"http://127.0.0.1:{port}/progress"


async def test_progress_may_be_one_object_or_several_lines(
    session: aiohttp.ClientSession, url: str, told: list[ProgressReport]
) -> None:
    for body in (b'{"epoch": 1, "loss": 0.5}', b'{"epoch": 2}\r\n\n{"epoch": 3, "step": 4}\n'):
        async with session.post(url, data=body) as response:
            assert response.status == 204
    assert told == [
        ProgressReport(epoch=1, metrics={"loss": 0.5}, at=7.0),
        ProgressReport(epoch=2, at=7.0),
        ProgressReport(epoch=3, step=4, at=7.0),
    ]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"not json", 400),
        (b'{"epoch": 1}\n{"epoch": -1}', 400),
        (b'{"epoch": NaN}', 400),
        (b'{"epoch": 1}\n' * (MOST_LINES + 1), 400),
        (b"x" * (LARGEST_BODY + 1), 413),
    ],
)
async def test_what_can_t_be_used_is_refused_as_a_whole(
    session: aiohttp.ClientSession, url: str, told: list[ProgressReport], body: bytes, status: int
) -> None:
    async with session.post(url, data=body) as response:
        assert response.status == status
        assert (await response.text()).strip()
    assert told == []


@pytest.mark.parametrize(
    ("caller", "called", "own"),
    [
        ("10.0.0.5", "10.0.0.5", True),
        ("127.0.0.1", "10.0.0.5", True),
        ("127.7.0.2", "127.7.0.3", True),
        ("::1", "fd00::5", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("fd00::6", "fd00::5", False),
        ("", "10.0.0.5", False),
    ],
)
def test_only_the_pod_itself_is_its_own(caller: str, called: str, own: bool) -> None:
    assert http.is_same_pod(caller, called) == own


async def test_progress_of_another_pod_is_refused(
    session: aiohttp.ClientSession, url: str, told: list[ProgressReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        http, "_socket_address", lambda _, name: {"peername": ("10.0.0.6", 1), "sockname": ("10.0.0.5", 2)}[name]
    )
    async with session.post(url, data=b'{"epoch": 1}') as response:
        assert response.status == 403
    assert told == []


async def test_a_port_that_is_taken_is_named(url: str) -> None:
    port = int(url.split(":")[2].split("/")[0])
    with pytest.raises(CannotListen, match=f"can't listen on port {port} of 127.0.0.1"):
        async with serve_app(progress_app(print, lambda: 0.0), LOOPBACK, port):
            pass
