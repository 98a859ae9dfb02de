"""The small HTTP servers of an operator, such as health and metrics, and a rate limiter."""

import contextlib
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from holdfast.httpserver import DEFAULT_LIMITS, CannotListen, Limits, listening

# The problems, a line each; no line means healthy.
Problems: TypeAlias = Callable[[], Sequence[str]]


def health_app(*, live: Problems, ready: Problems) -> web.Application:
    """/healthz shows whether to restart this process, /readyz whether the process does its work.

    An answer of /healthz shows that the event loop runs: the same loop serves the endpoint.
    """
    app = web.Application()
    add_health(app, live=live, ready=ready)
    return app


def add_health(app: web.Application, *, live: Problems, ready: Problems) -> None:
    """The same beside other paths, where a process has one port."""
    app.router.add_get("/healthz", _check(live))
    app.router.add_get("/readyz", _check(ready))


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
    """Serve `app` inside the block; yields the port, which the system chooses for port 0."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            chosen = await stack.enter_async_context(listening(app, host=host, port=port, limits=limits, tls=tls))
        except OSError as error:
            raise CannotListen(
                f"cannot listen on port {port}: {error.strerror}; choose another one with {option}"
            ) from error
        yield chosen


def _check(complaints: Problems) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        lines = complaints()
        return web.Response(status=503 if lines else 200, text="".join(f"{line}\n" for line in lines or ("ok",)))

    return answer


# Token buckets: a burst passes, then a steady trickle.

K = TypeVar("K", bound=Hashable)


class TokenBucket(NamedTuple):
    tokens: float
    at_s: float


class RateLimiter(Generic[K]):
    """A bucket for each of the last `memory` keys; it starts full and regains one token every `refill_s`."""

    def __init__(self, *, burst: int, refill_s: float, memory: int) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._memory = memory
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()

    def take(self, key: K, now_s: float) -> bool:
        """Take a token if there is one."""
        tokens, at_s = self._buckets.get(key, TokenBucket(self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - at_s) / self._refill_s)
        allowed = tokens >= 1
        self._buckets[key] = TokenBucket(tokens - 1 if allowed else tokens, now_s)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._memory:
            self._buckets.popitem(last=False)
        return allowed
