"""A watch's lines as events."""

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

# The bookmark that ends the first part of a streamed list carries it.
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class DecodeContext(Struct, frozen=True):
    """What a stream is read with: `tried` and `source` are for the words of errors."""

    tried: str
    source: str
    salvage: LenientDecoder


def parse_event(resource: Resource[T], line: WatchLine, reading: DecodeContext) -> Event[T]:
    """The event; an object that does not fit its model becomes a bookmark, since the watch has come that far."""
    if line.type == "ERROR":
        body = bytes(line.object)
        status = parse_status(body)
        raise error_from_status(reading.tried, code=status.code if status else 500, body=body, source=reading.source)
    try:
        change = Change(line.type)
    except ValueError:
        raise Undecodable(f"{reading.tried}: an event of the unknown type {line.type!r}") from None
    found = None
    if change is not Change.BOOKMARK:
        found = reading.salvage.object(resource, line.object, reading.tried)
    if found is not None:
        return Event(change, found.metadata.resource_version, found)
    if change is Change.DELETED:
        # An earlier version of it may have been readable and be in a cache: only a new list takes it out.
        raise Expired(f"{reading.tried}: an object was deleted that can't be read")
    return Event(Change.BOOKMARK, decode(ObjectHeader, line.object, reading.tried).metadata.resource_version, None)


def ends_initial_events(line: WatchLine, reading: DecodeContext) -> bool:
    if line.type != Change.BOOKMARK:
        return False
    return decode(ObjectHeader, line.object, reading.tried).metadata.annotations.get(_INITIAL_EVENTS_END) == "true"


# All objects of a kind at one moment: streamed where the server can, else in pages.


PAGE = 500
_STREAMED = {
    "watch": "1",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


class Lister:
    """Lists, and remembers for which kinds the server does not stream."""

    def __init__(self, transport: Transport, salvage: LenientDecoder) -> None:
        self._transport = transport
        self._salvage = salvage
        self._unstreamed: set[Resource[Any]] = set()

    async def list(self, resource: Resource[T], namespace: str, selectors: Mapping[str, str]) -> Listing[T]:
        if resource in self._unstreamed:
            return await self._paged(resource, namespace, selectors)
        try:
            if listing := await self._streamed(resource, namespace, selectors):
                return listing
        except Unreachable:
            # A server that has too much to do cuts streams short first. Pages are asked for again.
            return await self._paged(resource, namespace, selectors)
        except (Invalid, BadRequest, Forbidden):
            pass  # as making no sense: a server without the feature; as not permitted: who may list may not watch
        listing = await self._paged(resource, namespace, selectors)
        self._unstreamed.add(resource)  # only now: it was not the request itself that was wrong
        return listing

    async def _streamed(self, resource: Resource[T], namespace: str, selectors: Mapping[str, str]) -> Listing[T] | None:
        """None from a server that takes the request for an ordinary watch."""
        ask = list_request(resource, namespace, {**selectors, **_STREAMED})
        reading = DecodeContext(ask.description, self._transport.source, self._salvage)
        objects: dict[Key, T] = {}
        async with self._transport.stream(ask) as lines:
            async for text in lines:
                line = decode(WatchLine, text, ask.description)
                event = parse_event(resource, line, reading)
                if ends_initial_events(line, reading):
                    return Listing(tuple(objects.values()), event.resource_version)
                if line.type == Change.BOOKMARK:
                    return None
                if event.change is Change.DELETED and event.object:
                    objects.pop(event.object.metadata.key, None)
                elif event.object:
                    objects[event.object.metadata.key] = event.object
        raise Unreachable(f"{ask.description}: the server ended the list before all of it was there")

    async def _paged(self, resource: Resource[T], namespace: str, selectors: Mapping[str, str]) -> Listing[T]:
        try:
            return await self._pages(resource, namespace, selectors, limit=PAGE)
        except Expired:
            # The snapshot behind the pages is gone, and pages of a newer one would not fit those at hand.
            return await self._pages(resource, namespace, selectors, limit=0)

    async def _pages(
        self, resource: Resource[T], namespace: str, selectors: Mapping[str, str], *, limit: int
    ) -> Listing[T]:
        objects: list[T] = []
        query = {**selectors, "limit": str(limit) if limit else ""}
        while True:
            ask = list_request(resource, namespace, query)
            page = decode(Page, await self._transport.send(ask), ask.description)
            found = (self._salvage.object(resource, raw, ask.description) for raw in page.items or ())
            objects.extend(item for item in found if item is not None)
            if not page.metadata.continue_:
                return Listing(tuple(objects), page.metadata.resource_version)
            query["continue"] = page.metadata.continue_
