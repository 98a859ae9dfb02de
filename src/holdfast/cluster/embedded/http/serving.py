"""Listening on this machine alone, and telling its user how to connect."""

import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from aiohttp import web

from holdfast.cluster.certificate import own_identity
from holdfast.cluster.embedded.http.application import application
from holdfast.cluster.login import login_file, login_text
from holdfast.cluster.protocol import Cluster
from holdfast.errors import HoldfastError

HOST = "127.0.0.1"
# How long requests may go on when the server ends; watches would go on for ever.
LAST_WORDS_S = 0.5


class CannotServe(HoldfastError):
    """The local API can't be offered."""


@asynccontextmanager
async def serve(cluster: Cluster, data: Path, *, now: Callable[[], datetime]) -> AsyncIterator[Path]:
    """Serve the cluster inside the block; yields the kubeconfig in `data`, which is there as long as it is served."""
    token = secrets.token_urlsafe(32)
    runner = web.AppRunner(
        application(cluster, token=token, now=now),
        access_log=None,
        shutdown_timeout=LAST_WORDS_S,
        handler_cancellation=True,  # a watch whose client has left ends now, not with the next change
    )
    await runner.setup()
    try:
        identity = own_identity(HOST)
        url = await _listen(runner, identity.context)
        with login_file(data, login_text(url, authority=identity.authority, token=token, data=data)) as kubeconfig:
            yield kubeconfig
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, context: ssl.SSLContext) -> str:
    try:
        # The system chooses a port that is free.
        await web.TCPSite(runner, HOST, 0, ssl_context=context).start()
    except OSError as error:
        raise CannotServe(f"cannot listen on {HOST}: {error.strerror or error}") from error
    return f"https://{HOST}:{runner.addresses[0][1]}"
