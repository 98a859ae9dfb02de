"""JSON responses, and errors as metav1.Status."""

import msgspec
from aiohttp import web

from holdfast.cluster.errors import (
    AlreadyExists,
    BadRequest,
    ClusterError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from holdfast.cluster.protocol import JSON

JSON_TYPE = "application/json"


def json_response(document: JSON, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, content_type=JSON_TYPE)


# Errors as the API server returns them: metav1.Status.

_REASONS: dict[type[ClusterError], str] = {
    AlreadyExists: "AlreadyExists",
    BadRequest: "BadRequest",
    Conflict: "Conflict",
    Expired: "Expired",
    Forbidden: "Forbidden",
    Invalid: "Invalid",
    NotFound: "NotFound",
    TooManyRequests: "TooManyRequests",
    Unauthorized: "Unauthorized",
}
_REASONS_BY_CODE = {
    405: "MethodNotAllowed",
    408: "Timeout",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
}


class Unsupported(ClusterError):
    """The media type of the body is not supported."""

    code = 415


def status_for_error(error: ClusterError) -> JSON:
    code = error.code or 500
    reason = _REASONS_BY_CODE.get(code) or _REASONS.get(type(error), "InternalError")
    status = failure(code, reason, str(error))
    if isinstance(error, Invalid) and error.causes:
        causes = [{"field": each.field, "message": each.message, "reason": each.reason} for each in error.causes]
        status["details"] = {"causes": causes}
    return status


def refused_request(error: web.HTTPException) -> JSON:
    """The status of a request that the web server itself rejects: path, method or size."""
    reason = _REASONS_BY_CODE.get(error.status, "NotFound" if error.status == 404 else "BadRequest")
    return failure(error.status, reason, error.text or error.reason)


def failure(code: int, reason: str, message: str) -> JSON:
    return {**_status("Failure"), "message": message, "reason": reason, "code": code}


def success(resource: str, name: str, uid: str) -> JSON:
    return {**_status("Success"), "details": {"name": name, "kind": resource, "uid": uid}}


def _status(outcome: str) -> JSON:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": outcome}
