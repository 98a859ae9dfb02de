"""A kubelet's checkpoint endpoint over real HTTPS: it writes real archives, or answers as it is told."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from holdfast.times import format_time
from tests.checkpoints.images.archives import write_archive
from tests.control_plane.certificates import LOOPBACK, Authority, Pair

TOKEN = "the-agents-token"


class KubeletCall(NamedTuple):
    """namespace/pod/container, and the timeout that it was given."""

    target: str
    timeout: str
    authorization: str


Answering = Callable[[web.Request, Path], Awaitable[web.StreamResponse]]


async def saves(request: web.Request, archive: Path) -> web.StreamResponse:
    """As a kubelet whose runtime can."""
    await asyncio.to_thread(write_archive, archive)
    return web.json_response({"items": [str(archive)]})


def answers(status: int, text: str) -> Answering:
    async def answer(request: web.Request, archive: Path) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return answer


async def in_pieces(request: web.Request, status: int, body: bytes, pieces: int) -> web.StreamResponse:
    """One after the other, as a network brings them."""
    response = web.StreamResponse(status=status)
    await response.prepare(request)
    size = -(-len(body) // pieces)
    for start in range(0, len(body), size):
        await response.write(body[start : start + size])
        await asyncio.sleep(0.05)
    await response.write_eof()
    return response


async def breaks_off(request: web.Request, archive: Path) -> web.StreamResponse:
    """As a kubelet that dies in the middle: the archive may be there, the answer is not."""
    await asyncio.to_thread(write_archive, archive)
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class ScriptedKubelet:
    """script: how it answers one call after the other; then it saves. Every archive has a second of its own."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.calls: list[KubeletCall] = []
        self.script: list[Answering] = []
        self.archives: list[Path] = []
        self.token = TOKEN
        self.url = ""
        self.under_way = 0
        self.most_under_way = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        namespace, pod, container = (request.match_info[name] for name in ("namespace", "pod", "container"))
        authorization = request.headers.get("Authorization", "")
        self.calls.append(KubeletCall(f"{namespace}/{pod}/{container}", request.query["timeout"], authorization))
        if authorization != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized")
        answer = self.script.pop(0) if self.script else saves
        at = format_time(datetime.now(UTC))
        archive = self.checkpoints / f"checkpoint-{pod}_{namespace}-{container}-{at}.tar"
        self.archives.append(archive)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await answer(request, archive)
        finally:
            self.under_way -= 1

    @asynccontextmanager
    async def serving(self, pair: Pair, port: int = 0) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/checkpoint/{namespace}/{pod}/{container}", self._handle)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, LOOPBACK, port, ssl_context=context)
            await site.start()
            self.url = f"https://{LOOPBACK}:{runner.addresses[0][1]}"
            yield
        finally:
            await runner.cleanup()


def self_signed(folder: Path) -> Pair:
    """What kubeadm leaves: a certificate of an authority that nobody else knows, in one file with it."""
    folder.mkdir()
    authority = Authority(folder, datetime.now(UTC) - timedelta(minutes=1))
    pair = authority.server("kubelet")
    pair.certificate.write_bytes(pair.certificate.read_bytes() + authority.file.read_bytes())
    return pair
