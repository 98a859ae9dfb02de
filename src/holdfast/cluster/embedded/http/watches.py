"""Watches: a line of JSON for every change, until the client leaves or its time is up."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
from aiohttp import web

from holdfast.cluster.embedded.http.statuses import status_for_error
from holdfast.cluster.embedded.http.tables import included, table, wants_table
from holdfast.cluster.embedded.http.targets import RequestTarget
from holdfast.cluster.errors import BadRequest, ClusterError
from holdfast.cluster.protocol import JSON, Change, Event
from holdfast.cluster.whole import RawObject

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch", "") in ("1", "true")


async def watch(request: web.Request, target: RequestTarget) -> web.StreamResponse:
    labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    time_s = _time_s(request)
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
        await _follow(writer, target, events, time_s, bookmarks=request.query.get("allowWatchBookmarks") == "true")
    return stream


async def _follow(
    writer: "_Lines",
    target: RequestTarget,
    events: AsyncIterator[Event[RawObject]],
    time_s: float | None,
    *,
    bookmarks: bool,
) -> None:
    try:
        async with asyncio.timeout(time_s):
            async for event in events:
                if event.object is not None:
                    await writer.write(event.change, event.object.document)
                elif bookmarks:
                    await writer.bookmark(target, event.resource_version, {})
    except TimeoutError:
        pass  # the client set the time itself, and watches on from where it is
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
    """The object as it is, or as the row of a table."""
    if not wants_table(request):
        return lambda document: document
    include = included(request)
    return lambda document: table(
        target.kind.known, [document], document["metadata"]["resourceVersion"], target.now(), include
    )


def _time_s(request: web.Request) -> float | None:
    text = request.query.get("timeoutSeconds", "")
    if not text or text == "0":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise BadRequest(f"timeoutSeconds: {text[:20]} is not a number of seconds")
    return float(text)
