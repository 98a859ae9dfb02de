"""What a sidecar answers: the kubelet's probes and preStop, and the progress that the training of its own pod posts.

The probes' paths begin with the job's uid, which the kubelet knows and a neighbour in the network can't guess: an
unasked preStop would have the training save again and again.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from aiohttp import web

from holdfast.api.reports import Progress
from holdfast.errors import HoldfastError
from holdfast.httpserver import BadBody, listening, read_body
from holdfast.sidecar.peers import is_own_client
from holdfast.sidecar.progress import InvalidProgress, parse_line

# How the attempt stands, as far as its sidecar knows: what the probes answer.


class AttemptState:
    def __init__(self) -> None:
        self.is_started = False
        """What there is to resume from is in its place."""
        self.is_over = False
        """The operator says that this attempt has ended: nothing more of it counts."""
        self.stop = ""
        """Why the training is to end, in one word; "" while it is to go on."""
        self.is_saved = False
        """Asked to end, the training has saved, or has had its time to."""

        self.trainer_succeeded = False
        """The training has ended by itself, and says that all went well."""

    @property
    def is_live(self) -> bool:
        """What the kubelet is told about the trainer: it stops one that is not."""
        return not self.is_over and not self.is_saved


LOOPBACK = "127.0.0.1"
LARGEST_BODY = 64 << 10
MOST_LINES = 256
BODY_WITHIN_S = 10.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class CannotListen(HoldfastError):
    """A port that the sidecar needs is not free."""


def probe_app(standing: AttemptState, before_stop: Callable[[], Awaitable[str]], uid: str) -> web.Application:
    """/uid/started: the training may start. /uid/live: it may go on. /uid/prestop: answered when it has saved."""

    async def started(_: web.Request) -> web.Response:
        return _text("started") if standing.is_started else _text("restoring the checkpoint to resume from", 503)

    async def live(_: web.Request) -> web.Response:
        if standing.is_live:
            return _text("ok")
        return _text("this attempt is over" if standing.is_over else f"the training is to end: {standing.stop}", 500)

    async def prestop(_: web.Request) -> web.Response:
        return _text(await before_stop())

    app = web.Application(client_max_size=1024)
    app.router.add_get(f"/{uid}/started", started)
    app.router.add_get(f"/{uid}/live", live)
    app.router.add_get(f"/{uid}/prestop", prestop)
    return app


def progress_app(
    tell: Callable[[Progress], None], wall: Callable[[], float], *, shared: bool = False
) -> web.Application:
    """POST /progress: a JSON object, or several, each on a line of its own.

    `shared`: the network is that of a machine with other users, who are not heard.
    """

    async def take(request: web.Request) -> web.Response:
        caller, called = _end(request, "peername"), _end(request, "sockname")
        if not is_same_pod(caller[0], called[0]) or (
            shared and not await asyncio.to_thread(is_own_client, caller, called)
        ):
            return _text("only this pod's own training is heard here", 403)
        try:
            lines = [line for line in (await read_body(request, BODY_WITHIN_S)).splitlines() if line.strip()]
        except BadBody as error:
            return _text(str(error), error.status)
        if not 1 <= len(lines) <= MOST_LINES:
            return _text(f"send from 1 to {MOST_LINES} JSON objects, each on a line of its own", 400)
        try:
            entries = [parse_line(line, wall()) for line in lines]
        except InvalidProgress as error:
            return _text(f"nothing was taken: {error}", 400)
        for entry in entries:
            tell(entry)
        return web.Response(status=204)

    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_post("/progress", take)
    return app


def is_same_pod(caller: str, called: str) -> bool:
    """Whether a connection comes from this pod itself: from the address that it goes to, or from a loopback one."""
    return caller == called or is_loopback(caller)


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


@contextlib.asynccontextmanager
async def serve_app(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve inside the block; yields the port. The pod's end must not wait for those who still ask."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            serving = listening(app, host=host or None, port=port, shutdown_timeout_s=0.5)
            chosen = await stack.enter_async_context(serving)
        except OSError as error:
            place = f"port {port} of {host or 'this pod'}"
            raise CannotListen(
                f"can't listen on {place}: {error.strerror}; the sidecar needs it, let the training use another"
            ) from None
        yield chosen


def _end(request: web.Request, name: str) -> tuple[str, int]:
    """Address and port of one end of the connection; "" when it is gone already."""
    address = request.transport.get_extra_info(name) if request.transport is not None else None
    return (str(address[0]), int(address[1])) if address else ("", 0)


def _text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=f"{text}\n", status=status)
