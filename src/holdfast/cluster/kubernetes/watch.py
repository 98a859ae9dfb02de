"""Watch events, and lists that are streamed as watch events."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import BadRequest, Expired, Forbidden, Invalid, Undecodable, Unreachable
from holdfast.cluster.kubernetes.requests import list_request
from holdfast.cluster.kubernetes.responses import (
    LenientDecoder,
    ObjectHeader,
    Page,
    WatchLine,
    decode,
    error_from_status,
    parse_status,
)
from holdfast.cluster.kubernetes.transport import Transport
from holdfast.cluster.protocol import Change, Event, Listing, Resource

T = TypeVar("T", bound=Object)

# Annotation of the bookmark that ends the initial events of a streamed list.
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class DecodeContext(Struct, frozen=True):
    """Context for decoding a stream: `description` and `source` are for error messages."""

    description: str
    source: str
    decoder: LenientDecoder


def parse_event(resource: Resource[T], line: WatchLine, context: DecodeContext) -> Event[T]:
    """The event; an undecodable object becomes a bookmark, since the watch has reached that version."""
    if line.type == "ERROR":
        body = bytes(line.object)
        status = parse_status(body)
        raise error_from_status(
            context.description, code=status.code if status else 500, body=body, source=context.source
        )
    try:
        change = Change(line.type)
    except ValueError:
        raise Undecodable(f"{context.description}: an event of the unknown type {line.type!r}") from None
    found = None
    if change is not Change.BOOKMARK:
        found = context.decoder.object(resource, line.object, context.description)
    if found is not None:
        return Event(change, found.metadata.resource_version, found)
    if change is Change.DELETED:
        # An earlier version of the object may be decodable and cached: only a new list removes it from the cache.
        raise Expired(f"{context.description}: an object was deleted that can't be read")
    return Event(
        Change.BOOKMARK, decode(ObjectHeader, line.object, context.description).metadata.resource_version, None
    )


def ends_initial_events(line: WatchLine, context: DecodeContext) -> bool:
    if line.type != Change.BOOKMARK:
        return False
    return (
        decode(ObjectHeader, line.object, context.description).metadata.annotations.get(_INITIAL_EVENTS_END) == "true"
    )


# Lists: streamed if the server supports it, else in pages.

PAGE = 500
_STREAMED = {
    "watch": "1",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


class Lister:
    """Lists objects, and remembers the kinds that the server does not stream (KEP-3157)."""

    def __init__(self, transport: Transport, salvage: LenientDecoder) -> None:
        self._transport = transport
        self._decoder = salvage
        self._unstreamed: set[Resource[Any]] = set()

    async def list(self, resource: Resource[T], namespace: str, selectors: Mapping[str, str]) -> Listing[T]:
        if resource in self._unstreamed:
            return await self._paged(resource, namespace, selectors)
        try:
            if listing := await self._streamed(resource, namespace, selectors):
                return listing
        except Unreachable:
            # An overloaded server ends streams first. Requests for pages are retried.
            return await self._paged(resource, namespace, selectors)
        except (Invalid, BadRequest, Forbidden):
            pass  # Invalid, BadRequest: the server lacks the feature; Forbidden: the user may list, but not watch
        listing = await self._paged(resource, namespace, selectors)
        self._unstreamed.add(resource)  # only now it is known that the request itself was valid
        return listing

    async def _streamed(self, resource: Resource[T], namespace: str, selectors: Mapping[str, str]) -> Listing[T] | None:
        """A streamed list; None from a server that treats the request as an ordinary watch."""
        request = list_request(resource, namespace, {**selectors, **_STREAMED})
        context = DecodeContext(request.description, self._transport.source, self._decoder)
        objects: dict[Key, T] = {}
        async with self._transport.stream(request) as lines:
            async for data in lines:
                line = decode(WatchLine, data, request.description)
                event = parse_event(resource, line, context)
                if ends_initial_events(line, context):
                    return Listing(tuple(objects.values()), event.resource_version)
                if line.type == Change.BOOKMARK:
                    return None
                if event.change is Change.DELETED and event.object:
                    objects.pop(event.object.metadata.key, None)
                elif event.object:
                    objects[event.object.metadata.key] = event.object
        raise Unreachable(f"{request.description}: the server ended the list before all of it was there")

    async def _paged(self, resource: Resource[T], namespace: str, selectors: Mapping[str, str]) -> Listing[T]:
        try:
            return await self._pages(resource, namespace, selectors, limit=PAGE)
        except Expired:
            # The snapshot of the pages has expired, and pages of a newer snapshot would not match the first pages.
            return await self._pages(resource, namespace, selectors, limit=0)

    async def _pages(
        self, resource: Resource[T], namespace: str, selectors: Mapping[str, str], *, limit: int
    ) -> Listing[T]:
        objects: list[T] = []
        query = {**selectors, "limit": str(limit) if limit else ""}
        while True:
            request = list_request(resource, namespace, query)
            page = decode(Page, await self._transport.send(request), request.description)
            found = (self._decoder.object(resource, raw, request.description) for raw in page.items or ())
            objects.extend(item for item in found if item is not None)
            if not page.metadata.continue_:
                return Listing(tuple(objects), page.metadata.resource_version)
            query["continue"] = page.metadata.continue_
