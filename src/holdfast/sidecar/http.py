"""The HTTP endpoints of a sidecar: the kubelet's probes and preStop hook, notices of the node's agent, and progress
from its own pod's training.

The paths of probes and notices begin with the job's uid. Kubelet and agent know the uid, other clients on the network
can't guess it: with unauthorized requests they could make the training save again and again.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from aiohttp import web

from holdfast.api.reports import InvalidReport, NodeNotice, ProgressReport, decode_notice
from holdfast.httpserver import BadBody, CannotListen, listening, read_body
from holdfast.peers import is_own_client
from holdfast.sidecar.progress import InvalidProgress, parse_line

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class AttemptState:
    """The state of the attempt as the sidecar knows it. The probes report it."""

    def __init__(self) -> None:
        self.is_started = False
        """The checkpoint to resume from, if any, is restored."""
        self.is_over = False
        """The operator reports that this attempt has ended: nothing that it still does counts."""
        self.stop = ""
        """Why the training must stop, in one word; "" while it may continue."""
        self.is_saved = False
        """The training was asked to stop, and has saved a checkpoint or used up the time to save one."""

        self.trainer_succeeded = False
        """The training has exited by itself, and reports success."""

    @property
    def is_live(self) -> bool:
        """The result of the trainer's liveness probe: the kubelet stops a trainer that is not live."""
        return not self.is_over and not self.is_saved


LOOPBACK = "127.0.0.1"
LARGEST_BODY = 64 << 10
MOST_LINES = 256
BODY_WITHIN_S = 10.0


def probe_app(
    state: AttemptState, before_stop: Callable[[], Awaitable[str]], on_notice: Callable[[NodeNotice], str], uid: str
) -> web.Application:
    """/uid/started: the training may start. /uid/live: it may continue. /uid/prestop: returns once it has saved.

    POST /uid/notice: the node is about to go; returns at once.
    """

    async def started(_: web.Request) -> web.Response:
        return _text("started") if state.is_started else _text("restoring the checkpoint to resume from", 503)

    async def live(_: web.Request) -> web.Response:
        if state.is_live:
            return _text("ok")
        return _text("this attempt is over" if state.is_over else f"the training is to end: {state.stop}", 500)

    async def prestop(_: web.Request) -> web.Response:
        return _text(await before_stop())

    async def notice(request: web.Request) -> web.Response:
        try:
            return _text(on_notice(decode_notice(await read_body(request, BODY_WITHIN_S))), 202)
        except BadBody as error:
            return _text(str(error), error.status)
        except InvalidReport as error:
            return _text(str(error), 400)

    app = web.Application(client_max_size=1024)
    app.router.add_post(f"/{uid}/notice", notice)
    app.router.add_get(f"/{uid}/started", started)
    app.router.add_get(f"/{uid}/live", live)
    app.router.add_get(f"/{uid}/prestop", prestop)
    return app


def progress_app(
    on_progress: Callable[[ProgressReport], None], wall: Callable[[], float], *, shared: bool = False
) -> web.Application:
    """POST /progress: JSON lines, one progress object per line.

    `shared`: the pod uses the network of a node with other users. Requests of other users are rejected.
    """

    async def post_progress(request: web.Request) -> web.Response:
        client, server = _socket_address(request, "peername"), _socket_address(request, "sockname")
        if not is_same_pod(client[0], server[0]) or (
            shared and not await asyncio.to_thread(is_own_client, client, server)
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
            on_progress(entry)
        return web.Response(status=204)

    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_post("/progress", post_progress)
    return app


def is_same_pod(client: str, server: str) -> bool:
    """Whether a connection comes from this pod: the client has the server's address, or a loopback address."""
    return client == server or is_loopback(client)


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def own_addresses(host: str) -> list[str]:
    """The pod's address, and 127.0.0.1 unless pods share it: on a local node each pod has its own 127.x.y.z address."""
    return [host] if not host or is_loopback(host) else [host, LOOPBACK]


def is_shared(host: str) -> bool:
    """Whether the pod shares the network of its node with all users: on a local node pods have loopback addresses."""
    return is_loopback(host)


@contextlib.asynccontextmanager
async def serve_app(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve inside the block; yields the port. Open requests must not delay the termination of the pod."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            serving = listening(app, host=host or None, port=port, shutdown_timeout_s=0.5)
            chosen = await stack.enter_async_context(serving)
        except OSError as error:
            endpoint = f"port {port} of {host or 'this pod'}"
            raise CannotListen(
                f"can't listen on {endpoint}: {error.strerror}; the sidecar needs it, let the training use another"
            ) from None
        yield chosen


def _socket_address(request: web.Request, name: str) -> tuple[str, int]:
    """Address and port of one end of the connection; ("", 0) when the connection is closed already."""
    address = request.transport.get_extra_info(name) if request.transport is not None else None
    return (str(address[0]), int(address[1])) if address else ("", 0)


def _text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=f"{text}\n", status=status)
