"""A watch's lines as events."""

from typing import TypeVar

from msgspec import Struct

from holdfast.api.meta import Object
from holdfast.cluster.errors import Expired, Undecodable
from holdfast.cluster.kubernetes.answers import error_from_status, parse_status
from holdfast.cluster.kubernetes.decoding import LenientDecoder, ObjectHeader, WatchLine, decode
from holdfast.cluster.protocol import Change, Event, Resource

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
