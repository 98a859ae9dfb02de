"""Listening on this machine alone, and telling its user how to connect."""

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

from holdfast.cluster.certificate import self_signed_identity
from holdfast.cluster.embedded.http.application import application
from holdfast.cluster.login import kubeconfig_file, kubeconfig_text
from holdfast.cluster.protocol import Cluster
from holdfast.errors import HoldfastError
from holdfast.httpserver import Limits, listening

HOST = "127.0.0.1"
# How long requests may go on when the server ends; watches would go on for ever.
LAST_WORDS_S = 0.5

# Each informer of an operator has a watch of its own, and every kubectl that follows something.
LIMITS = Limits(connections=1024)


class CannotServe(HoldfastError):
    """The local API can't be offered."""


@contextlib.asynccontextmanager
async def serve(cluster: Cluster, data: Path, *, now: Callable[[], datetime]) -> AsyncIterator[Path]:
    """Serve the cluster inside the block; yields the kubeconfig in `data`, which is there as long as it is served."""
    token, identity = secrets.token_urlsafe(32), self_signed_identity(HOST)
    async with contextlib.AsyncExitStack() as stack:
        serving = listening(
            application(cluster, token=token, now=now),
            host=HOST,
            port=0,
            limits=LIMITS,
            tls=identity.context,
            shutdown_timeout_s=LAST_WORDS_S,
            handler_cancellation=True,  # a watch whose client has left ends now, not with the next change
        )
        try:
            port = await stack.enter_async_context(serving)
        except OSError as error:
            raise CannotServe(f"cannot listen on {HOST}: {error.strerror or error}") from error
        login = kubeconfig_text(f"https://{HOST}:{port}", authority=identity.authority, token=token, data=data)
        with kubeconfig_file(data, login) as kubeconfig:
            yield kubeconfig
