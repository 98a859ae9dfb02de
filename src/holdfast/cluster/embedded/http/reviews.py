"""TokenReview: a question in the form of an object that is never kept."""

from aiohttp import web

from holdfast.cluster.embedded.http.answers import json_response
from holdfast.cluster.embedded.http.bodies import part, read_object
from holdfast.cluster.embedded.http.targets import CLUSTER
from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import JSON, Identity

_EXTRA = "authentication.kubernetes.io"


async def review_token(request: web.Request) -> web.Response:
    body = await read_object(request)
    spec = part(body, "spec")
    token, audiences = spec.get("token"), spec.get("audiences")
    if not isinstance(token, str) or not token:
        raise BadRequest("spec.token is missing, or no text")
    if not isinstance(audiences, list) or len(audiences) != 1 or not isinstance(audiences[0], str):
        raise BadRequest("spec.audiences: name exactly one audience")
    found = await request.app[CLUSTER].review_token(token, audiences[0])
    status = _known(found, audiences[0]) if found else {"authenticated": False}
    kind: JSON = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    return json_response({**kind, "metadata": {}, "status": status}, status=201)


def _known(found: Identity, audience: str) -> JSON:
    extra = {f"{_EXTRA}/pod-name": [found.pod_name], f"{_EXTRA}/pod-uid": [found.pod_uid]}
    return {"authenticated": True, "user": {"username": found.username, "extra": extra}, "audiences": [audience]}
