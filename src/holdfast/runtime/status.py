"""Writes of every controller to its own kind: status, Events, and the deletion of expired objects."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec
import structlog
from msgspec import Struct

from holdfast.api.meta import Object
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.cluster.protocol import Resource
from holdfast.cluster.resources import merge_patch
from holdfast.runtime.events import Recorder
from holdfast.runtime.read_your_writes import TrackedClient

T = TypeVar("T", bound=Object)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EventMessage(Struct, frozen=True):
    reason: str
    message: str
    warning: bool = False


async def write_status(session: TrackedClient, kind: Resource[T], obj: T, old: Struct | None, new: Struct) -> T | None:
    """Returns the updated object; None when nothing changed. The write is guarded by the version that was read."""
    patch = merge_patch(msgspec.to_builtins(old) if old is not None else {}, msgspec.to_builtins(new))
    if not patch:
        return None
    guard = {"resourceVersion": obj.metadata.resource_version}
    return await session.patch_status(kind, obj.metadata.key, {"metadata": guard, "status": patch})


def record_events(events: Recorder, kind: Resource[T], obj: T, messages: Iterable[EventMessage]) -> None:
    for event in messages:
        record = events.warning if event.warning else events.normal
        record(kind, obj, event.reason, event.message)


async def delete_expired(session: TrackedClient, kind: Resource[T], obj: T) -> None:
    """Deletes an object after its time to live, but never a later object of the same name."""
    log.info("time to live is over", key=str(obj.metadata.key))
    try:
        await session.delete(kind, obj.metadata.key, uid=obj.metadata.uid)
    except (NotFound, Conflict):
        return  # the object is gone already
