"""Discovery: versions, groups, kinds and their schemas; and token reviews."""

from collections.abc import Iterable, Sequence

from aiohttp import web

from holdfast import __version__
from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import JSON, Identity
from holdfast.local.apiserver.http.requests import part, read_object
from holdfast.local.apiserver.http.responses import json_response
from holdfast.local.apiserver.http.targets import CLUSTER, ServedVersion, all_kinds, not_served

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
# The Kubernetes version whose behaviour is served.
MAJOR, MINOR = "1", "36"


async def version(_request: web.Request) -> web.Response:
    return json_response({"major": MAJOR, "minor": MINOR, "gitVersion": f"v{MAJOR}.{MINOR}.0+holdfast-{__version__}"})


async def core_versions(_request: web.Request) -> web.Response:
    return json_response({"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]})


async def groups(request: web.Request) -> web.Response:
    versions: dict[str, list[str]] = {}
    for kind in await all_kinds(request.app[CLUSTER]):
        known = versions.setdefault(kind.resource.group, [])
        if kind.resource.group and kind.resource.version not in known:
            known.append(kind.resource.version)
    named = [_group(group, names) for group, names in versions.items() if group]
    return json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": named})


async def resources(request: web.Request) -> web.Response:
    path = request.match_info
    api_version = f"{path['group']}/{path['version']}" if "group" in path else path["version"]
    kinds = [kind for kind in await all_kinds(request.app[CLUSTER]) if kind.resource.api_version == api_version]
    if not kinds:
        raise not_served(api_version)
    entries = [entry for kind in kinds for entry in _entries(kind)]
    return json_response(
        {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": entries}
    )


def _group(group: str, versions: Sequence[str]) -> JSON:
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def _entries(kind: ServedVersion) -> list[JSON]:
    known, resource = kind.known, kind.resource
    common: JSON = {"namespaced": resource.namespaced, "kind": resource.kind}
    entries: list[JSON] = [
        {
            **common,
            "name": resource.plural,
            "singularName": known.singular,
            "verbs": VERBS,
            "shortNames": list(known.short_names),
            "categories": list(known.categories),
        }
    ]
    part: JSON = {**common, "singularName": "", "verbs": ["get", "patch", "update"]}
    if known.has_status:
        entries.append({**part, "name": f"{resource.plural}/status"})
    if known.has_scale:
        scale = {"name": f"{resource.plural}/scale", "group": "autoscaling", "version": "v1", "kind": "Scale"}
        entries.append({**part, **scale})
    if str(resource) == "pods":
        entries.append({**part, "name": "pods/log", "verbs": ["get"]})
    return entries


# OpenAPI 3 schemas: kubectl reads them for `kubectl explain`, and to see that the server validates fields.

ROOT = "/openapi/v3"
_FIELD_VALIDATION = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]


async def index(request: web.Request) -> web.Response:
    paths = {_group_version_path(kind): None for kind in await all_kinds(request.app[CLUSTER])}
    return json_response({"paths": {path: {"serverRelativeURL": f"{ROOT}/{path}"} for path in paths}})


async def document(request: web.Request) -> web.Response:
    path = request.match_info["place"]
    kinds = [kind for kind in await all_kinds(request.app[CLUSTER]) if _group_version_path(kind) == path]
    if not kinds:
        raise not_served(f"{ROOT}/{path}")
    return json_response(
        {
            "openapi": "3.0.0",
            "info": {"title": "holdfast", "version": "v1"},
            "paths": _paths(kinds),
            "components": {"schemas": {_name(kind): _schema(kind) for kind in kinds}},
        }
    )


def _group_version_path(kind: ServedVersion) -> str:
    return f"apis/{kind.resource.api_version}" if kind.resource.group else f"api/{kind.resource.version}"


def _paths(kinds: Iterable[ServedVersion]) -> JSON:
    paths: JSON = {}
    for kind in kinds:
        scope = "namespaces/{namespace}/" if kind.resource.namespaced else ""
        collection = f"/{_group_version_path(kind)}/{scope}{kind.resource.plural}"
        identity = {"x-kubernetes-group-version-kind": _identity(kind), "responses": {}}
        read = {**identity, "x-kubernetes-action": "list"}
        paths[collection] = {"get": read, "post": {**identity, "parameters": _FIELD_VALIDATION}}
        paths[f"{collection}/{{name}}"] = {
            "get": {**identity, "x-kubernetes-action": "get"},
            "patch": {**identity, "x-kubernetes-action": "patch", "parameters": _FIELD_VALIDATION},
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


# TokenReview: a request in the form of an object that is never stored.

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
    status = _authenticated_status(found, audiences[0]) if found else {"authenticated": False}
    kind: JSON = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    return json_response({**kind, "metadata": {}, "status": status}, status=201)


def _authenticated_status(found: Identity, audience: str) -> JSON:
    extra = {f"{_EXTRA}/pod-name": [found.pod_name], f"{_EXTRA}/pod-uid": [found.pod_uid]}
    if found.node_name:
        extra[f"{_EXTRA}/node-name"] = [found.node_name]
    return {"authenticated": True, "user": {"username": found.username, "extra": extra}, "audiences": [audience]}
