"""Requests to the API server: each verb as a path, a query and a body."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import JSON, Body, DeleteOptions, Resource

# The owner of the fields that we write, and how the server treats unknown fields.
_WRITING = {"fieldManager": "holdfast", "fieldValidation": "Strict"}


class ApiRequest(Struct, frozen=True, kw_only=True):
    """One request; `description` begins every error message about the request."""

    verb: str
    resource: str
    description: str
    method: str
    path: str
    query: Mapping[str, str | Sequence[str]] = {}
    body: bytes = b""
    content_type: str = "application/json"
    accept: str = "application/json"

    @property
    def write(self) -> bool:
        return self.method != "GET"


def list_request(
    resource: Resource[Any], namespace: str, query: Mapping[str, str], *, verb: str = "list"
) -> ApiRequest:
    """A list request, or a watch with verb="watch"."""
    return ApiRequest(
        verb=verb,
        resource=str(resource),
        description=f"{verb} {resource}" + (f" in {namespace}" if namespace else ""),
        method="GET",
        path=_collection(resource, namespace),
        query={name: value for name, value in query.items() if value},
    )


def to_get(resource: Resource[Any], key: Key) -> ApiRequest:
    return ApiRequest(
        verb="get",
        resource=str(resource),
        description=f"get {resource} {key}",
        method="GET",
        path=_object(resource, key),
    )


def to_create(resource: Resource[Any], body: Body, namespace: str) -> ApiRequest:
    document = _document(resource, body)
    metadata = document.get("metadata") or {}
    namespace = namespace or metadata.get("namespace") or ""
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    description = f"create {resource} {Key(namespace, name)}"
    if resource.namespaced and not namespace:
        raise BadRequest(f"{description}: {resource.kind} lives in a namespace, and none was given")
    return ApiRequest(
        verb="create",
        resource=str(resource),
        description=description,
        method="POST",
        path=_collection(resource, namespace),
        query=_WRITING,
        body=msgspec.json.encode(document),
    )


def to_replace(resource: Resource[Any], key: Key, body: Body) -> ApiRequest:
    return ApiRequest(
        verb="update",
        resource=str(resource),
        description=f"replace {resource} {key}",
        method="PUT",
        path=_object(resource, key),
        query=_WRITING,
        body=msgspec.json.encode(_document(resource, body)),
    )


def to_patch(resource: Resource[Any], key: Key, patch: Body, *, subresource: str = "") -> ApiRequest:
    tail = f"/{subresource}" if subresource else ""
    return ApiRequest(
        verb="patch",
        resource=f"{resource}{tail}",
        description=f"patch {resource}{tail} {key}",
        method="PATCH",
        path=_object(resource, key) + tail,
        query=_WRITING,
        body=msgspec.json.encode(patch),
        content_type="application/merge-patch+json",
    )


def to_delete(resource: Resource[Any], key: Key, options: DeleteOptions) -> ApiRequest:
    body: JSON = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": options.propagation}
    guards = (("uid", options.uid), ("resourceVersion", options.resource_version))
    if preconditions := {name: value for name, value in guards if value}:
        body["preconditions"] = preconditions
    if options.grace_period_s is not None:
        body["gracePeriodSeconds"] = options.grace_period_s
    return ApiRequest(
        verb="delete",
        resource=str(resource),
        description=f"delete {resource} {key}",
        method="DELETE",
        path=_object(resource, key),
        body=msgspec.json.encode(body),
    )


def to_pod_log(
    key: Key, *, container: str, tail_lines: int | None, limit_bytes: int | None = None, follow: bool = False
) -> ApiRequest:
    query = {
        "follow": "true" if follow else "",
        "container": container,
        "tailLines": "" if tail_lines is None else str(tail_lines),
        "limitBytes": "" if limit_bytes is None else str(limit_bytes),
    }
    return ApiRequest(
        verb="get",
        resource="pods/log",
        description=f"{'follow' if follow else 'read'} the log of pod {key}",
        method="GET",
        path=f"/api/v1/namespaces/{_segment(key.namespace)}/pods/{_segment(key.name)}/log",
        query={name: value for name, value in query.items() if value},
        accept="*/*",
    )


def to_pod_proxy(key: Key, *, port: int, path: str) -> ApiRequest:
    """A GET to a port of the pod, which the API server passes on."""
    return ApiRequest(
        verb="get",
        resource="pods/proxy",
        description=f"ask port {port} of pod {key}",
        method="GET",
        path=f"/api/v1/namespaces/{_segment(key.namespace)}/pods/{_segment(f'{key.name}:{port}')}/proxy{path}",
        accept="*/*",
    )


def to_version() -> ApiRequest:
    return ApiRequest(
        verb="get", resource="version", description="get the version of the API server", method="GET", path="/version"
    )


def to_exec(key: Key, *, container: str, command: Sequence[str]) -> ApiRequest:
    return ApiRequest(
        verb="create",
        resource="pods/exec",
        description=f"run {command[0]} in pod {key}",
        method="GET",
        path=f"/api/v1/namespaces/{_segment(key.namespace)}/pods/{_segment(key.name)}/exec",
        query={"container": container, "command": command, "stdin": "true", "stdout": "true", "stderr": "true"},
        accept="*/*",
    )


def _document(resource: Resource[Any], body: Body) -> JSON:
    document: JSON = msgspec.to_builtins(body)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **document}


def _collection(resource: Resource[Any], namespace: str) -> str:
    """The path of a collection in one namespace or in all namespaces."""
    if resource.namespaced and namespace:
        return f"{_root(resource)}/namespaces/{_segment(namespace)}/{resource.plural}"
    return f"{_root(resource)}/{resource.plural}"


def _object(resource: Resource[Any], key: Key) -> str:
    namespace_path = f"namespaces/{_segment(key.namespace)}/" if resource.namespaced else ""
    return f"{_root(resource)}/{namespace_path}{resource.plural}/{_segment(key.name)}"


def _root(resource: Resource[Any]) -> str:
    return f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"


def _segment(name: str) -> str:
    # A DELETE without a name would delete the whole collection, and dots would escape from the path.
    if name in ("", ".", ".."):
        raise BadRequest(f"{name!r} can't be the name of an object or a namespace")
    return quote(name, safe="")
