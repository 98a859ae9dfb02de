"""Commands in a container, through a real API server."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.api.meta import Key
from holdfast.cluster.errors import Forbidden, NotFound, ServerError, Unreachable
from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.kubernetes.subresources import PROTOCOLS, ExecStream
from holdfast.runtime.process import utc_now
from tests.cli.conftest import real_lab
from tests.control_plane.server import ControlPlane

UPPER = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line.upper()); sys.stdout.flush()"
BYTES = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 8192)"
FAILS = "import sys; sys.stderr.write('no such thing'); sys.exit(3)"


@pytest.fixture
async def pod(control_plane: ControlPlane) -> AsyncIterator[tuple[KubernetesCluster, Key]]:
    """A pod that runs; a command in it runs on this machine."""
    async with real_lab(control_plane) as lab:
        await lab.pod("a", {})
        assert isinstance(lab.cluster, KubernetesCluster)
        yield lab.cluster, Key(lab.namespace, "a")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def exactly(attached: ExecStream, count: int) -> bytes:
    got = b""
    async with asyncio.timeout(60):
        while len(got) < count:
            piece = await attached.read()
            assert piece, f"it ended after {len(got)} bytes"
            got += piece
    return got


async def test_a_command_gets_its_input_and_answers(pod: tuple[KubernetesCluster, Key]) -> None:
    cluster, key = pod
    async with cluster.run_in_pod(key, python(UPPER), container="trainer") as attached:
        for word in (b"one\n", b"two & three\n"):
            await attached.write(word)
            assert await exactly(attached, len(word)) == word.upper()


async def test_every_byte_of_a_long_answer_arrives_and_then_the_end(pod: tuple[KubernetesCluster, Key]) -> None:
    cluster, key = pod
    async with cluster.run_in_pod(key, python(BYTES), container="trainer") as attached:
        assert await exactly(attached, 256 * 8192) == bytes(range(256)) * 8192
        assert await attached.read() == b""


async def test_a_command_that_fails_is_reported_with_its_last_output(pod: tuple[KubernetesCluster, Key]) -> None:
    cluster, key = pod
    async with cluster.run_in_pod(key, python(FAILS), container="trainer") as attached:
        with pytest.raises(ServerError, match=rf"run .* in pod {key}: .*: no such thing"):
            await attached.read()


async def test_a_conversation_that_is_over_raises(pod: tuple[KubernetesCluster, Key]) -> None:
    cluster, key = pod
    async with cluster.run_in_pod(key, python(UPPER), container="trainer") as attached:
        await attached.write(b"one\n")
    with pytest.raises(Unreachable, match="the connection broke"):
        await attached.read()
    with pytest.raises(Unreachable, match="the connection broke"):
        await attached.write(b"two\n")


async def test_a_pod_that_is_not_there_and_one_that_is_not_ours_are_refused(
    pod: tuple[KubernetesCluster, Key], control_plane: ControlPlane
) -> None:
    cluster, key = pod
    with pytest.raises(NotFound, match="there is no such pod"):
        async with cluster.run_in_pod(Key(key.namespace, "absent"), ["true"], container="trainer"):
            pass
    stranger = connect(load_config(str(control_plane.user("somebody"))), rng=Random(0), now=utc_now)
    try:
        with pytest.raises(Forbidden, match="pods/exec: allow it with a Role"):
            async with stranger.run_in_pod(key, ["true"], container="trainer"):
                pass
    finally:
        await stranger.close()


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"", b"\1", b"\2half a word", b"\3{"], "the server did not say how it ended: half a word"),
        ([b"\3" + b'{"status": "Failure", "message": "exit code 137"}'], "exit code 137"),
    ],
)
async def test_odd_messages_are_passed_over_and_a_strange_end_is_a_failure(frames: list[bytes], words: str) -> None:
    async with talking(frames) as attached:
        with pytest.raises(ServerError, match=words):
            await attached.read()


async def test_a_connection_that_breaks_is_not_an_end() -> None:
    async with talking([b"\1half"]) as attached:
        assert await attached.read() == b"half"
        with pytest.raises(Unreachable, match="the connection broke before the command had ended"):
            await attached.read()


@asynccontextmanager
async def talking(frames: list[bytes]) -> AsyncIterator[ExecStream]:
    """A server that says these, and hangs up."""

    async def speak(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        for frame in frames:
            await socket.send_bytes(frame)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/", speak)
    async with (
        TestServer(app) as server,
        aiohttp.ClientSession() as client,
        client.ws_connect(server.make_url("/"), protocols=PROTOCOLS) as socket,
    ):
        yield ExecStream(socket, "run it")
