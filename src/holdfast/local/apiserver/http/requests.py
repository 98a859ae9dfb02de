"""The body of a request: objects, options and patches."""

from typing import Any

import msgspec
from aiohttp import web

from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import JSON
from holdfast.httpserver import BadBody, read_body
from holdfast.local.apiserver.http import protobuf
from holdfast.local.apiserver.http.responses import Unsupported

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
# An object of etcd's maximum size, plus the overhead of JSON.
LARGEST_BODY = 3 * 2**20
BODY_WITHIN_S = 60.0


async def read_object(request: web.Request) -> JSON:
    """The object in the body of a request."""
    if request.content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(await _body(request))
    if request.content_type not in ("application/json", "application/octet-stream"):
        raise Unsupported(f"{request.content_type} is not read here: {protobuf.INSTEAD}")
    return _decoded(await _body(request))


async def read_options(request: web.Request) -> JSON:
    """The options of a delete request; empty when the body is empty."""
    if request.content_type == protobuf.CONTENT_TYPE:
        raise Unsupported("options are not read as protobuf here: send application/json")
    text = await _body(request)
    return _decoded(text) if text else {}


async def read_patch(request: web.Request) -> JSON:
    """A merge patch; a strategic merge patch is accepted where it means the same."""
    if request.content_type not in (MERGE, STRATEGIC):
        raise Unsupported(f"{request.content_type} is not read here: send {MERGE}")
    patch = _decoded(await _body(request))
    if request.content_type == STRATEGIC and not _is_plain(patch):
        raise Unsupported(f"a strategic merge patch with lists or directives is not read here: send {MERGE}")
    return patch


def part(document: JSON, name: str) -> JSON:
    """A field of a body that is an object; empty when it is left out."""
    found = document.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRequest(f"{name} is not a JSON object")
    return found


def refuse_dry_run(request: web.Request) -> None:
    if request.query.get("dryRun"):
        raise BadRequest("dry runs are not served here: `holdfast validate` checks a manifest without applying it")


async def _body(request: web.Request) -> bytes:
    try:
        return await read_body(request, BODY_WITHIN_S)
    except BadBody as error:
        raise BadRequest(str(error), code=error.status) from None


def _is_plain(value: Any) -> bool:
    """Whether the patch has neither of a strategic merge's own features: directives, and lists merged by element."""
    if isinstance(value, dict):
        return not any(name.startswith("$") for name in value) and all(map(_is_plain, value.values()))
    return not isinstance(value, list)


def _decoded(text: bytes) -> JSON:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body of the request is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body of the request is not a JSON object")
    return document
