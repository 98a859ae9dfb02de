"""A proxy before a real registry that answers, breaks off or is silent where a test says so."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeAlias

import aiohttp
from aiohttp import web

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.reference import RegistryAddress, registry_address
from holdfast.checkpoints.images.registry import RegistryClient
from tests.checkpoints.images.registries import PASSWORD, USER, RunningRegistry
from tests.control_plane.certificates import LOOPBACK

HOP_HEADERS = frozenset(("connection", "transfer-encoding", "content-length", "keep-alive"))

Answer: TypeAlias = web.StreamResponse
Fault: TypeAlias = Callable[["FaultyRegistry", web.Request], Awaitable[Answer]]


class SeenRequest(NamedTuple):
    method: str
    path: str
    authorization: str
    content_range: str
    host: str = ""


class Rule(NamedTuple):
    method: str
    path: re.Pattern[str]
    fault: Fault


class TestClock:
    """Time that passes when somebody sleeps, and the sleeps."""

    __test__ = False

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


class FaultyRegistry:
    """Each rule applies once, to the first request that it fits."""

    def __init__(self, registry: RunningRegistry) -> None:
        self.registry = registry
        self.rules: list[Rule] = []
        self.seen: list[SeenRequest] = []
        self.clock = TestClock()
        self.kept = b""
        """Of an upload that was broken off: docker-registry itself keeps none of it."""
        self.address = RegistryAddress("", "")
        self._upstream: aiohttp.ClientSession | None = None

    def on(self, method: str, path: str, *faults: Fault) -> None:
        """The faults of the next requests of this method whose path, or a part of it, fits."""
        self.rules += [Rule(method, re.compile(path), fault) for fault in faults]

    def client(self, *, password: str = PASSWORD, for_s: float = 600.0, idle_s: float = 30.0) -> RegistryClient:
        credential = RegistryCredential(
            username=USER if password else "", password=password, authority=self.registry.ca_pem
        )
        return RegistryClient(
            self.address,
            credential,
            deadline_s=self.clock() + for_s,
            plain_http=(self.address.host,),
            clock=self.clock,
            sleep=self.clock.sleep,
            chance=lambda: 1.0,
            idle_s=idle_s,
        )

    def requests(self, method: str, path: str = "") -> list[SeenRequest]:
        return [each for each in self.seen if each.method == method and re.search(path, each.path)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultyRegistry"]:
        app = web.Application(client_max_size=1 << 40)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        trust = ssl.create_default_context(cadata=self.registry.ca_pem)
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as self._upstream:
                host = f"{LOOPBACK}:{runner.addresses[0][1]}"
                self.address = registry_address(host, (host,))
                yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> Answer:
        headers = request.headers
        self.seen.append(
            SeenRequest(
                request.method,
                request.path_qs,
                headers.get("Authorization", ""),
                headers.get("Content-Range", ""),
                request.host,
            )
        )
        for rule in self.rules:
            if rule.method == request.method and rule.path.search(request.path_qs):
                self.rules.remove(rule)
                return await rule.fault(self, request)
        if self.kept and "/blobs/uploads/" in request.path and request.method in ("GET", "PATCH"):
            return await self._go_on(request)
        return await self.forward(request)

    async def _go_on(self, request: web.Request) -> Answer:
        """As a registry does that keeps what it got: it names the offset, and takes the rest."""
        if request.method == "GET":
            named = {"Range": f"0-{len(self.kept) - 1}", "Location": request.path_qs}
            return web.Response(status=204, headers=named)
        kept, self.kept = self.kept, b""

        async def whole() -> AsyncIterator[bytes]:
            yield kept
            async for chunk in request.content.iter_any():
                yield chunk

        return await self.forward(request, whole(), size=len(kept) + int(request.headers["Content-Length"]))

    async def forward(
        self, request: web.Request, body: AsyncIterator[bytes] | None = None, *, size: int | None = None
    ) -> Answer:
        """The registry's own answer."""
        assert self._upstream is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
        if size is not None:
            del headers["Content-Range"]
        length = request.headers.get("Content-Length") if size is None else str(size)
        if length is not None:
            headers["Content-Length"] = length
        data = body or (request.content.iter_any() if request.can_read_body else None)
        url = f"{self.registry.address.origin}{request.path_qs}"
        async with self._upstream.request(
            request.method, url, headers=headers, data=data, allow_redirects=False
        ) as answer:
            content = await answer.read()
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS}
        if request.method == "HEAD":
            kept["Content-Length"] = answer.headers.get("Content-Length", "0")
        location = kept.get("Location", "").replace("https://", "http://")
        return web.Response(
            status=answer.status, body=content, headers={**kept, **({"Location": location} if location else {})}
        )


def answers(status: int, body: bytes = b"", **headers: str) -> Fault:
    """Answered without reading the request's body."""

    async def fault(_: FaultyRegistry, request: web.Request) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = web.Response(status=status, body=body, headers=named)
        response.force_close()
        return response

    return fault


def breaks_after(sent: int) -> Fault:
    """The registry gets so many bytes of the body, and the connection breaks."""

    async def fault(proxy: FaultyRegistry, request: web.Request) -> Answer:
        async def part() -> AsyncIterator[bytes]:
            left = sent
            async for chunk in request.content.iter_any():
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    raise ConnectionResetError
            raise ConnectionResetError

        with suppress(aiohttp.ClientError, ConnectionError):
            await proxy.forward(request, part())
        return reset(request)

    return fault


def breaks_and_keeps(sent: int) -> Fault:
    """The connection breaks after so many bytes, and the registry keeps them: it can name the offset."""

    async def fault(proxy: FaultyRegistry, request: web.Request) -> Answer:
        proxy.kept += await request.content.readexactly(sent)
        return reset(request)

    return fault


async def loses_answer(proxy: FaultyRegistry, request: web.Request) -> Answer:
    """The registry does what it is asked, and its answer does not arrive."""
    await proxy.forward(request)
    return reset(request)


async def forgets(proxy: FaultyRegistry, request: web.Request) -> Answer:
    """What was kept of an upload is given up."""
    proxy.kept = b""
    return web.Response(status=204)


async def resets(_: FaultyRegistry, request: web.Request) -> Answer:
    return reset(request)


async def is_silent(_: FaultyRegistry, request: web.Request) -> Answer:
    """No answer, as long as the other side waits."""
    await asyncio.Event().wait()  # cancelled when the other side has gone
    return web.Response()


async def tampers(proxy: FaultyRegistry, request: web.Request) -> Answer:
    """One bit of the body changes on its way."""

    async def changed() -> AsyncIterator[bytes]:
        is_first = True
        async for chunk in request.content.iter_any():
            yield bytes((chunk[0] ^ 1,)) + chunk[1:] if is_first and chunk else chunk
            is_first = False

    return await proxy.forward(request, changed())


def reset(request: web.Request) -> Answer:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
