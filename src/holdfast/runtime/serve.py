"""The small HTTP servers of an operator: its health, its metrics, and whatever else is to be served."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from holdfast.errors import HoldfastError
from holdfast.httpserver import DEFAULT_LIMITS, Limits, listening

# What is not as it should be, a line each; nothing means well.
Complaints: TypeAlias = Callable[[], Sequence[str]]


class CannotListen(HoldfastError):
    """A port that the operator needs is not free."""


def health_app(*, live: Complaints, ready: Complaints) -> web.Application:
    """/healthz says whether to restart this process, /readyz whether it does its work.

    That /healthz answers at all shows that the event loop turns: it is served by the same loop.
    """
    app = web.Application()
    app.router.add_get("/healthz", _check(live))
    app.router.add_get("/readyz", _check(ready))
    return app


def metrics_app(registry: CollectorRegistry) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


@contextlib.asynccontextmanager
async def serve_app(
    app: web.Application,
    *,
    host: str | None,
    port: int,
    option: str,
    limits: Limits = DEFAULT_LIMITS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve `app` inside the block; yields the port, chosen by the system when asked for 0."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            chosen = await stack.enter_async_context(listening(app, host=host, port=port, limits=limits, tls=tls))
        except OSError as error:
            raise CannotListen(
                f"cannot listen on port {port}: {error.strerror}; choose another one with {option}"
            ) from error
        yield chosen


def _check(complaints: Complaints) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        lines = complaints()
        return web.Response(status=503 if lines else 200, text="".join(f"{line}\n" for line in lines or ("ok",)))

    return answer
