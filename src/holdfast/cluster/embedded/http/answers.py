"""Answers in JSON."""

import msgspec
from aiohttp import web

from holdfast.cluster.protocol import JSON

JSON_TYPE = "application/json"


def json_response(document: JSON, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, content_type=JSON_TYPE)
