"""Schemas in OpenAPI 3: kubectl reads them to explain a kind, and to see that the server checks what is applied."""

from collections.abc import Iterable

from aiohttp import web

from holdfast.cluster.embedded.http.answers import json_response
from holdfast.cluster.embedded.http.kinds import ServedVersion, all_kinds, not_served
from holdfast.cluster.embedded.http.targets import CLUSTER
from holdfast.cluster.protocol import JSON

ROOT = "/openapi/v3"
_CHECKED = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]


async def index(request: web.Request) -> web.Response:
    places = {_place(kind): None for kind in await all_kinds(request.app[CLUSTER])}
    return json_response({"paths": {place: {"serverRelativeURL": f"{ROOT}/{place}"} for place in places}})


async def document(request: web.Request) -> web.Response:
    place = request.match_info["place"]
    kinds = [kind for kind in await all_kinds(request.app[CLUSTER]) if _place(kind) == place]
    if not kinds:
        raise not_served(f"{ROOT}/{place}")
    return json_response(
        {
            "openapi": "3.0.0",
            "info": {"title": "holdfast", "version": "v1"},
            "paths": _paths(kinds),
            "components": {"schemas": {_name(kind): _schema(kind) for kind in kinds}},
        }
    )


def _place(kind: ServedVersion) -> str:
    return f"apis/{kind.resource.api_version}" if kind.resource.group else f"api/{kind.resource.version}"


def _paths(kinds: Iterable[ServedVersion]) -> JSON:
    paths: JSON = {}
    for kind in kinds:
        home = "namespaces/{namespace}/" if kind.resource.namespaced else ""
        collection = f"/{_place(kind)}/{home}{kind.resource.plural}"
        identity = {"x-kubernetes-group-version-kind": _identity(kind), "responses": {}}
        read = {**identity, "x-kubernetes-action": "list"}
        paths[collection] = {"get": read, "post": {**identity, "parameters": _CHECKED}}
        paths[f"{collection}/{{name}}"] = {
            "get": {**identity, "x-kubernetes-action": "get"},
            "patch": {**identity, "x-kubernetes-action": "patch", "parameters": _CHECKED},
        }
    return paths


def _schema(kind: ServedVersion) -> JSON:
    schema: JSON = dict(kind.schema) or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {**schema, "x-kubernetes-group-version-kind": [_identity(kind)]}


def _identity(kind: ServedVersion) -> JSON:
    return {"group": kind.resource.group, "version": kind.resource.version, "kind": kind.resource.kind}


def _name(kind: ServedVersion) -> str:
    reversed_group = ".".join(reversed(kind.resource.group.split("."))) or "core"
    return f"{reversed_group}.{kind.resource.version}.{kind.resource.kind}"
