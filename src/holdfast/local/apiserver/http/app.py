"""The HTTP server of the local API: routes, authentication, error responses, and the listener."""

import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from holdfast.cluster.certificate import self_signed_identity
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.login import kubeconfig_file, kubeconfig_text
from holdfast.cluster.protocol import Cluster
from holdfast.errors import HoldfastError
from holdfast.httpserver import Limits, listening
from holdfast.local.apiserver.http import discovery, resources
from holdfast.local.apiserver.http.requests import LARGEST_BODY
from holdfast.local.apiserver.http.responses import failure, json_response, refused_request, status_for_error
from holdfast.local.apiserver.http.targets import CLUSTER, NOW, Handler

log = structlog.get_logger(__name__)

_ROOTS = ("/api/{version}", "/apis/{group}/{version}")
_SUBRESOURCES = {
    "status": {
        "GET": resources.get_status,
        "PUT": resources.replace_status,
        "PATCH": resources.patch_status,
    },
    "scale": {"GET": resources.get_scale, "PUT": resources.replace_scale, "PATCH": resources.patch_scale},
}


def application(cluster: Cluster, *, token: str, now: Callable[[], datetime]) -> web.Application:
    """The API as a web application; a client with the token may do everything."""
    app = web.Application(middlewares=[_error_responses, _authenticated(token)], client_max_size=LARGEST_BODY)
    app[CLUSTER], app[NOW] = cluster, now
    route = app.router.add_route
    route("GET", "/version", discovery.version)
    route("GET", "/api", discovery.core_versions)
    route("GET", "/apis", discovery.groups)
    route("GET", discovery.ROOT, discovery.index)
    route("GET", f"{discovery.ROOT}/{{place:.+}}", discovery.document)
    # Before the routes of namespaced objects, which also match the path of a namespace's status.
    for method, handler in _SUBRESOURCES["status"].items():
        route(method, "/api/{version}/{plural:namespaces}/{name}/status", handler)
    route("GET", "/api/{version}/namespaces/{namespace}/{plural:pods}/{name}/log", resources.read_log)
    route("POST", "/apis/authentication.k8s.io/v1/tokenreviews", discovery.review_token)
    for root in _ROOTS:
        route("GET", root, discovery.resources)
        for scope in (f"{root}/namespaces/{{namespace}}", root):
            _add_objects(app, f"{scope}/{{plural}}")
    return app


def _add_objects(app: web.Application, collection: str) -> None:
    item = f"{collection}/{{name}}"
    app.router.add_route("GET", collection, resources.list_or_watch)
    app.router.add_route("POST", collection, resources.create)
    app.router.add_route("GET", item, resources.get)
    app.router.add_route("PUT", item, resources.replace)
    app.router.add_route("PATCH", item, resources.patch)
    app.router.add_route("DELETE", item, resources.delete)
    for name, handlers in _SUBRESOURCES.items():
        for method, handler in handlers.items():
            app.router.add_route(method, f"{item}/{name}", handler)


def _authenticated(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, expected):
            refusal = json_response(failure(401, "Unauthorized", "Unauthorized"), status=401)
            refusal.force_close()  # an unauthenticated connection must not stay open like a client's
            return refusal
        return await handler(request)

    return authenticated


@web.middleware
async def _error_responses(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ClusterError as error:
        if _has_begun(request):
            raise ConnectionResetError("broken off: a refusal can't follow half an answer") from error
        return json_response(status_for_error(error), status=error.code or 500)
    except web.HTTPException as error:
        return json_response(refused_request(error), status=error.status)
    except ConnectionResetError:
        raise  # the client has disconnected: no response is possible
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        if _has_begun(request):
            raise
        return json_response(failure(500, "InternalError", "an error in holdfast: its log says more"), status=500)


def _has_begun(request: web.Request) -> bool:
    """Whether a part of the response is already sent."""
    return request.writer.output_size > 0


# The listener: on the loopback address only, with a kubeconfig for the user.

HOST = "127.0.0.1"
# How long requests may continue when the server stops; watches would continue for ever.
SHUTDOWN_TIMEOUT_S = 0.5

# Each informer of an operator has its own watch, and so has every kubectl that watches or follows logs.
LIMITS = Limits(connections=1024)


class CannotServe(HoldfastError):
    """The local API can't be served."""


@contextlib.asynccontextmanager
async def serve(cluster: Cluster, data: Path, *, now: Callable[[], datetime]) -> AsyncIterator[Path]:
    """Serve the cluster inside the block; yields the path of the kubeconfig in `data`, which exists while serving."""
    token, identity = secrets.token_urlsafe(32), self_signed_identity(HOST)
    async with contextlib.AsyncExitStack() as stack:
        serving = listening(
            application(cluster, token=token, now=now),
            host=HOST,
            port=0,
            limits=LIMITS,
            tls=identity.context,
            shutdown_timeout_s=SHUTDOWN_TIMEOUT_S,
            handler_cancellation=True,  # a watch whose client has disconnected ends now, not with the next change
        )
        try:
            port = await stack.enter_async_context(serving)
        except OSError as error:
            raise CannotServe(f"cannot listen on {HOST}: {error.strerror or error}") from error
        login = kubeconfig_text(f"https://{HOST}:{port}", authority=identity.authority, token=token, data=data)
        with kubeconfig_file(data, login) as kubeconfig:
            yield kubeconfig
