"""What every controller writes of its own kind: status, news for people, and the end of what has had its time."""

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
    """The object as it is then; None when nothing changed. Guarded by the version that was looked at."""
    patch = merge_patch(msgspec.to_builtins(old) if old is not None else {}, msgspec.to_builtins(new))
    if not patch:
        return None
    guard = {"resourceVersion": obj.metadata.resource_version}
    return await session.patch_status(kind, obj.metadata.key, {"metadata": guard, "status": patch})


def record_events(events: Recorder, kind: Resource[T], obj: T, told: Iterable[EventMessage]) -> None:
    for item in told:
        record = events.warning if item.warning else events.normal
        record(kind, obj, item.reason, item.message)


async def delete_expired(session: TrackedClient, kind: Resource[T], obj: T) -> None:
    """Its time to live is over; one of the same name that came later is another one."""
    log.info("time to live is over", key=str(obj.metadata.key))
    try:
        await session.delete(kind, obj.metadata.key, uid=obj.metadata.uid)
    except (NotFound, Conflict):
        return  # it is gone already
