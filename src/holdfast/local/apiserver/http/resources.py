"""The handlers that read, write and watch objects and their subresources."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec
from aiohttp import web

from holdfast.cluster.errors import BadRequest, ClusterError, NotFound
from holdfast.cluster.printing.jsonpath import compile_path
from holdfast.cluster.protocol import JSON, Change, DeleteOptions, Event, Propagation
from holdfast.cluster.resources import KnownKind, RawObject, merge_patch
from holdfast.local.apiserver.http.requests import part, read_object, read_options, read_patch, refuse_dry_run
from holdfast.local.apiserver.http.responses import json_response, status_for_error, success
from holdfast.local.apiserver.http.targets import RequestTarget, ScalePaths, not_served, target_of

# metav1.Table: the rows that `kubectl get` prints, with the columns of the server.

WANTED = "as=Table"


def wants_table(request: web.Request) -> bool:
    return WANTED in request.headers.get("Accept", "")


def included(request: web.Request) -> Callable[[JSON], JSON | None]:
    """The object that is sent with each row, as the client requests it."""
    match request.query.get("includeObject"):
        case "Object":
            return lambda document: document
        case "None":
            return lambda document: None
    return _metadata_only


def table(
    known: KnownKind, documents: Iterable[JSON], version: str, now: datetime, include: Callable[[JSON], JSON | None]
) -> JSON:
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if column.name == "NAME" else "",
                "description": column.description,
                "priority": 1 if column.wide else 0,
            }
            for column in known.columns
        ],
        "rows": [
            {"cells": [column.show(document, now) for column in known.columns], "object": include(document)}
            for document in documents
        ],
    }


def _metadata_only(document: JSON) -> JSON:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": document["metadata"]}


# Watches: a line of JSON for every change, until the client disconnects or the timeout passes.

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch", "") in ("1", "true")


async def watch(request: web.Request, target: RequestTarget) -> web.StreamResponse:
    labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    timeout_s = _timeout_s(request)
    version = request.query.get("resourceVersion", "")
    streamed_list = request.query.get("sendInitialEvents") == "true"
    initial: tuple[RawObject, ...] = ()
    if streamed_list or version in ("", "0"):
        listing = await target.cluster.list(
            target.resource, namespace=target.key.namespace, labels=labels, fields=fields
        )
        initial, version = listing.items, listing.resource_version
    async with target.cluster.watch(
        target.resource,
        resource_version=version,
        namespace=target.key.namespace,
        labels=labels,
        fields=fields,
    ) as events:
        stream = web.StreamResponse(headers={"Content-Type": "application/json;stream=watch"})
        await stream.prepare(request)
        writer = _Lines(stream, _shape(request, target))
        for each in initial:
            await writer.write(Change.ADDED, each.document)
        if streamed_list:
            await writer.bookmark(target, version, {INITIAL_EVENTS_END: "true"})
        await _follow(writer, target, events, timeout_s, bookmarks=request.query.get("allowWatchBookmarks") == "true")
    return stream


async def _follow(
    writer: "_Lines",
    target: RequestTarget,
    events: AsyncIterator[Event[RawObject]],
    timeout_s: float | None,
    *,
    bookmarks: bool,
) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            async for event in events:
                if event.object is not None:
                    await writer.write(event.change, event.object.document)
                elif bookmarks:
                    await writer.bookmark(target, event.resource_version, {})
    except TimeoutError:
        pass  # the client set the timeout itself, and resumes from its last version
    except ClusterError as error:
        await writer.send("ERROR", status_for_error(error))


class _Lines:
    def __init__(self, stream: web.StreamResponse, shape: Callable[[JSON], JSON]) -> None:
        self._stream = stream
        self._shape = shape

    async def write(self, change: Change, document: JSON) -> None:
        await self.send(change, self._shape(document))

    async def bookmark(self, target: RequestTarget, version: str, annotations: JSON) -> None:
        metadata = {"resourceVersion": version, **({"annotations": annotations} if annotations else {})}
        await self.send(
            Change.BOOKMARK,
            {"kind": target.resource.kind, "apiVersion": target.resource.api_version, "metadata": metadata},
        )

    async def send(self, change: str, document: JSON) -> None:
        await self._stream.write(msgspec.json.encode({"type": change, "object": document}) + b"\n")


def _shape(request: web.Request, target: RequestTarget) -> Callable[[JSON], JSON]:
    """The object unchanged, or as a table with one row."""
    if not wants_table(request):
        return lambda document: document
    include = included(request)
    return lambda document: table(
        target.kind.known, [document], document["metadata"]["resourceVersion"], target.now(), include
    )


def _timeout_s(request: web.Request) -> float | None:
    text = request.query.get("timeoutSeconds", "")
    if not text or text == "0":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise BadRequest(f"timeoutSeconds: {text[:20]} is not a number of seconds")
    return float(text)


async def list_or_watch(request: web.Request) -> web.StreamResponse:
    target = await target_of(request)
    if is_watch(request):
        return await watch(request, target)
    # `limit` is ignored: the whole list is one page, as from servers without pagination.
    listing = await target.cluster.list(
        target.resource,
        namespace=target.key.namespace,
        labels=request.query.get("labelSelector", ""),
        fields=request.query.get("fieldSelector", ""),
    )
    documents = [each.document for each in listing.items]
    if wants_table(request):
        known = target.kind.known
        return json_response(table(known, documents, listing.resource_version, target.now(), included(request)))
    return json_response(
        {
            "kind": f"{target.resource.kind}List",
            "apiVersion": target.resource.api_version,
            "metadata": {"resourceVersion": listing.resource_version},
            "items": documents,
        }
    )


async def create(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    body = await read_object(request)
    created = await target.cluster.create(target.resource, body, namespace=target.key.namespace)
    return shown(request, target, created, status=201)


async def get(request: web.Request) -> web.Response:
    target = await target_of(request)
    return shown(request, target, await target.cluster.get(target.resource, target.key))


async def replace(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    body = await read_object(request)
    return shown(request, target, await target.cluster.replace(target.resource, target.key, body))


async def patch(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    body = await read_patch(request)
    return shown(request, target, await target.cluster.patch(target.resource, target.key, body))


async def delete(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    options = await read_options(request)
    preconditions = part(options, "preconditions")
    found = await target.cluster.get(target.resource, target.key)
    await target.cluster.delete(
        target.resource,
        target.key,
        DeleteOptions(
            uid=str(preconditions.get("uid") or ""),
            resource_version=str(preconditions.get("resourceVersion") or ""),
            propagation=_propagation(options.get("propagationPolicy") or request.query.get("propagationPolicy")),
            grace_period_s=_grace_s(options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))),
        ),
    )
    return json_response(await _after_deletion(target, found))


def shown(request: web.Request, target: RequestTarget, found: RawObject, *, status: int = 200) -> web.Response:
    if not wants_table(request):
        return json_response(found.document, status=status)
    version = found.metadata.resource_version
    return json_response(
        table(target.kind.known, [found.document], version, target.now(), included(request)), status=status
    )


async def _after_deletion(target: RequestTarget, found: RawObject) -> JSON:
    """The object while a finalizer or a grace period holds it, else a success status."""
    try:
        remaining = await target.cluster.get(target.resource, target.key)
    except NotFound:
        remaining = None
    if remaining is not None and remaining.metadata.uid == found.metadata.uid:
        return remaining.document
    return success(target.resource.plural, found.metadata.name, found.metadata.uid)


def _propagation(requested: object) -> Propagation:
    if requested is None:
        return Propagation.BACKGROUND
    try:
        return Propagation(str(requested))
    except ValueError:
        raise BadRequest(f"propagationPolicy: {requested} is none: use {', '.join(Propagation)}") from None


def _grace_s(requested: object) -> int | None:
    if requested is None:
        return None
    text = str(requested)
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadRequest(f"gracePeriodSeconds: {text[:20]} is not a number of seconds")
    return int(text)


# Subresources: status, scale and log.


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
    # Replace only the version that was read: the version in the body, or else the one that was just read.
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
        first = await anext(chunks, b"")  # before the response begins, so that an error still gets its own HTTP status
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
    patch: JSON = _document_at(paths.spec_replicas_path, replicas)
    if version := part(wanted, "metadata").get("resourceVersion"):
        patch["metadata"] = {"resourceVersion": version}
    return json_response(_scale(await target.cluster.patch(target.resource, target.key, patch), paths))


def _document_at(path: str, value: Any) -> Any:
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
