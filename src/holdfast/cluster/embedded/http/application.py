"""The paths of the API, who may use them, and how a refusal is answered."""

import hmac
from collections.abc import Callable
from datetime import datetime

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from holdfast.cluster.embedded.http import discovery, objects, openapi, reviews, subresources
from holdfast.cluster.embedded.http.answers import json_response
from holdfast.cluster.embedded.http.bodies import LARGEST_BODY
from holdfast.cluster.embedded.http.statuses import failure, refused_request, status_for_error
from holdfast.cluster.embedded.http.targets import CLUSTER, NOW, Handler
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import Cluster

log = structlog.get_logger(__name__)

_ROOTS = ("/api/{version}", "/apis/{group}/{version}")
_SUBRESOURCES = {
    "status": {
        "GET": subresources.get_status,
        "PUT": subresources.replace_status,
        "PATCH": subresources.patch_status,
    },
    "scale": {"GET": subresources.get_scale, "PUT": subresources.replace_scale, "PATCH": subresources.patch_scale},
}


def application(cluster: Cluster, *, token: str, now: Callable[[], datetime]) -> web.Application:
    """Whoever knows the token may do everything."""
    app = web.Application(middlewares=[_answered, _authenticated(token)], client_max_size=LARGEST_BODY)
    app[CLUSTER], app[NOW] = cluster, now
    route = app.router.add_route
    route("GET", "/version", discovery.version)
    route("GET", "/api", discovery.core_versions)
    route("GET", "/apis", discovery.groups)
    route("GET", openapi.ROOT, openapi.index)
    route("GET", f"{openapi.ROOT}/{{place:.+}}", openapi.document)
    # Before the objects in namespaces, which a namespace's own status looks like.
    for method, handler in _SUBRESOURCES["status"].items():
        route(method, "/api/{version}/{plural:namespaces}/{name}/status", handler)
    route("GET", "/api/{version}/namespaces/{namespace}/{plural:pods}/{name}/log", subresources.read_log)
    route("POST", "/apis/authentication.k8s.io/v1/tokenreviews", reviews.review_token)
    for root in _ROOTS:
        route("GET", root, discovery.resources)
        for home in (f"{root}/namespaces/{{namespace}}", root):
            _add_objects(app, f"{home}/{{plural}}")
    return app


def _add_objects(app: web.Application, collection: str) -> None:
    one = f"{collection}/{{name}}"
    app.router.add_route("GET", collection, objects.list_or_watch)
    app.router.add_route("POST", collection, objects.create)
    app.router.add_route("GET", one, objects.get)
    app.router.add_route("PUT", one, objects.replace)
    app.router.add_route("PATCH", one, objects.patch)
    app.router.add_route("DELETE", one, objects.delete)
    for name, handlers in _SUBRESOURCES.items():
        for method, handler in handlers.items():
            app.router.add_route(method, f"{one}/{name}", handler)


def _authenticated(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, expected):
            refusal = json_response(failure(401, "Unauthorized", "Unauthorized"), status=401)
            refusal.force_close()  # a stranger's connection must not last like that of a client
            return refusal
        return await handler(request)

    return authenticated


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ClusterError as error:
        if _has_begun(request):
            raise ConnectionResetError("broken off: a refusal can't follow half an answer") from error
        return json_response(status_for_error(error), status=error.code or 500)
    except web.HTTPException as error:
        return json_response(refused_request(error), status=error.status)
    except ConnectionResetError:
        raise  # the client has left: there is nobody to answer
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        if _has_begun(request):
            raise
        return json_response(failure(500, "InternalError", "an error in holdfast: its log says more"), status=500)


def _has_begun(request: web.Request) -> bool:
    """Is a part of the answer on its way?"""
    return request.writer.output_size > 0
