"""All objects of a kind at one moment: streamed where the server can, else in pages."""

from collections.abc import Mapping
from typing import Any, TypeVar

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import BadRequest, Expired, Forbidden, Invalid, Unreachable
from holdfast.cluster.kubernetes.asks import list_request
from holdfast.cluster.kubernetes.decoding import LenientDecoder, Page, WatchLine, decode
from holdfast.cluster.kubernetes.events import DecodeContext, ends_initial_events, parse_event
from holdfast.cluster.kubernetes.transport import Transport
from holdfast.cluster.protocol import Change, Listing, Resource

T = TypeVar("T", bound=Object)

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
