"""Two ways to the double: in process, and over HTTP on the loopback address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from holdfast.httpserver import listening
from holdfast.providers.gcp.http import HttpRequest, HttpResponse, NoAnswer
from tests.providers.compute_engine.calls import ConnectionLost
from tests.providers.compute_engine.double import ComputeEngine


class InProcess:
    """`Http` without a network. Who gives up on a request does not stop what it has begun."""

    def __init__(self, cloud: ComputeEngine) -> None:
        self._cloud = cloud
        self._answers: set[asyncio.Task[HttpResponse]] = set()

    async def send(self, request: HttpRequest) -> HttpResponse:
        if request.gate:
            request.gate()
        answer = asyncio.create_task(self._cloud.answer(request), name=f"{request.method} {request.url}")
        self._answers.add(answer)
        answer.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(request.timeout_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            raise NoAnswer(f"compute.test did not answer within {request.timeout_s:g} s") from None
        except ConnectionLost as loss:
            if loss.is_silent:
                await asyncio.sleep(request.timeout_s)
                raise NoAnswer(f"compute.test did not answer within {request.timeout_s:g} s") from None
            raise NoAnswer("compute.test broke off") from None

    async def close(self) -> None:
        pass

    def _ended(self, answer: asyncio.Task[HttpResponse]) -> None:
        self._answers.discard(answer)
        if not answer.cancelled():
            answer.exception()  # whoever waits has it


@asynccontextmanager
async def serving(cloud: ComputeEngine) -> AsyncIterator[str]:
    """Its address, which HOLDFAST_GCP_ENDPOINT names."""
    app = web.Application(client_max_size=4 << 20)

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            response = await cloud.answer(
                HttpRequest(
                    method=request.method,
                    url=f"{cloud.origin}{request.path}",
                    query=dict(request.query),
                    headers=request.headers.copy(),
                    body=await request.read(),
                )
            )
        except ConnectionLost as loss:
            if loss.is_silent:
                await asyncio.Event().wait()
            if request.transport is not None:  # who asked may be gone
                request.transport.abort()
            return web.Response()
        return web.Response(status=response.status, headers=response.headers, body=response.body)

    app.router.add_route("*", "/{path:.*}", answer)
    async with listening(app, host="127.0.0.1", port=0, shutdown_timeout_s=0.1) as port:
        cloud.origin = f"http://127.0.0.1:{port}"
        yield cloud.origin
