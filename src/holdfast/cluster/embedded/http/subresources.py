"""status, scale and log: the parts of an object that are read and written on their own."""

from contextlib import aclosing
from typing import Any

from aiohttp import web

from holdfast.cluster.embedded.http.answers import json_response
from holdfast.cluster.embedded.http.bodies import part, read_object, read_patch, refuse_dry_run
from holdfast.cluster.embedded.http.kinds import ScalePaths, not_served
from holdfast.cluster.embedded.http.objects import shown
from holdfast.cluster.embedded.http.targets import RequestTarget, target_of
from holdfast.cluster.errors import BadRequest
from holdfast.cluster.patches import merge_patch
from holdfast.cluster.printing.paths import compile_path
from holdfast.cluster.protocol import JSON
from holdfast.cluster.whole import RawObject


async def get_status(request: web.Request) -> web.Response:
    target = await _with_status(request)
    return shown(request, target, await target.cluster.get(target.resource, target.key))


async def patch_status(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await _with_status(request)
    patch = await read_patch(request)
    return shown(request, target, await target.cluster.patch_status(target.resource, target.key, patch))


async def replace_status(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await _with_status(request)
    body = await read_object(request)
    old = await target.cluster.get(target.resource, target.key)
    patch = {"status": merge_patch(part(old.document, "status"), part(body, "status"))}
    # What was looked at is what may be replaced: the version in the body, or else the one that was just read.
    version = part(body, "metadata").get("resourceVersion") or old.metadata.resource_version
    patch["metadata"] = {"resourceVersion": version}
    return shown(request, target, await target.cluster.patch_status(target.resource, target.key, patch))


async def get_scale(request: web.Request) -> web.Response:
    target, paths = await _with_scale(request)
    return json_response(_scale(await target.cluster.get(target.resource, target.key), paths))


async def replace_scale(request: web.Request) -> web.Response:
    return await _rescale(request, await read_object(request))


async def patch_scale(request: web.Request) -> web.Response:
    return await _rescale(request, await read_patch(request))


async def read_log(request: web.Request) -> web.StreamResponse:
    target = await target_of(request)
    container = request.query.get("container", "")
    tail = _number(request, "tailLines")
    if request.query.get("follow") not in ("1", "true"):
        limit = _number(request, "limitBytes")
        text = await target.cluster.pod_log(target.key, container=container, tail_lines=tail, limit_bytes=limit)
        return web.Response(body=text, content_type="text/plain")
    stream = web.StreamResponse(headers={"Content-Type": "text/plain"})
    async with aclosing(target.cluster.follow_log(target.key, container=container, tail_lines=tail)) as chunks:
        first = await anext(chunks, b"")  # before the answer begins: a refusal is one with a status
        await stream.prepare(request)
        await stream.write(first)
        async for chunk in chunks:
            await stream.write(chunk)
    return stream


async def _with_status(request: web.Request) -> RequestTarget:
    target = await target_of(request)
    if not target.kind.known.has_status:
        raise not_served(f"{target.resource}/status")
    return target


async def _with_scale(request: web.Request) -> tuple[RequestTarget, ScalePaths]:
    target = await target_of(request)
    if target.kind.scale is None:
        raise not_served(f"{target.resource}/scale")
    return target, target.kind.scale


async def _rescale(request: web.Request, wanted: JSON) -> web.Response:
    refuse_dry_run(request)
    target, paths = await _with_scale(request)
    replicas = part(wanted, "spec").get("replicas")
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise BadRequest("spec.replicas is missing, or no number")
    patch: JSON = _at(paths.spec_replicas_path, replicas)
    if version := part(wanted, "metadata").get("resourceVersion"):
        patch["metadata"] = {"resourceVersion": version}
    return json_response(_scale(await target.cluster.patch(target.resource, target.key, patch), paths))


def _at(path: str, value: Any) -> Any:
    """A document that holds nothing but `value`, at a dotted path."""
    for name in reversed(path.removeprefix(".").split(".")):
        value = {name: value}
    return value


def _scale(found: RawObject, paths: ScalePaths) -> JSON:
    metadata = found.metadata
    identity = {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "creationTimestamp": metadata.creation_timestamp,
    }
    status: JSON = {"replicas": _first(found, paths.status_replicas_path, 0)}
    if selector := paths.label_selector_path and _first(found, paths.label_selector_path, ""):
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": identity,
        "spec": {"replicas": _first(found, paths.spec_replicas_path, 0)},
        "status": status,
    }


def _first(found: RawObject, path: str, default: Any) -> Any:
    values = compile_path(path)(found.document)
    return values[0] if values else default


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadRequest(f"{name}: {text[:20]} is not a number")
    return int(text)
