"""Tells people what happened to their objects, without ever holding up the work.

These are core/v1 Events: `kubectl describe` and `kubectl get events` show their count and both times ("x12 over 2h"),
and a repeat is a plain patch of the count. The newer events.k8s.io/v1 allows no change but its series, which older
tools leave out.
"""

import asyncio
from collections import OrderedDict
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar

import structlog
from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.runtime.http import RateLimiter
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import Now, format_time

T = TypeVar("T", bound=Object)

# Nothing of an Event but its name is read again.
EVENTS = Resource(group="", version="v1", kind="Event", plural="events", model=Object)

COMPONENT = "holdfast"
MESSAGE_LIMIT = 1024
WAITING_LIMIT = 10_000
# Per object, as client-go has it: 25 writes at once, then one in five minutes.
BURST = 25
REFILL_S = 300.0
# How many notes and objects are remembered; the ones not heard of for longest are forgotten.
MEMORY = 4096

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class EventKey(NamedTuple):
    """What is said about which object; the same note again is a repeat."""

    api_version: str
    kind: str
    key: Key
    uid: str
    type: EventType
    reason: str
    message: str


class EventCounts(Struct, frozen=True):
    """When a note was made, and how often."""

    first: datetime
    last: datetime
    count: int

    def and_then(self, later: "EventCounts") -> "EventCounts":
        return EventCounts(self.first, later.last, self.count + later.count)


class Recorder:
    """Takes notes at once and writes them in the background; a repeat raises a count."""

    def __init__(self, cluster: Cluster, *, instance: str, now: Now, metrics: Metrics) -> None:
        self._cluster = cluster
        self._instance = instance
        self._now = now
        self._metrics = metrics
        self._waiting: dict[EventKey, EventCounts] = {}
        self._written: OrderedDict[EventKey, tuple[Key, EventCounts]] = OrderedDict()
        self._buckets: RateLimiter[str] = RateLimiter(burst=BURST, refill_s=REFILL_S, memory=MEMORY)
        self._changed = asyncio.Event()
        self._stopping = False

    def normal(self, resource: Resource[T], obj: T, reason: str, message: str) -> None:
        """Something went as it should."""
        self._record(resource, obj, EventType.NORMAL, reason, message)

    def warning(self, resource: Resource[T], obj: T, reason: str, message: str) -> None:
        """Something that the object's owner may have to mend."""
        self._record(resource, obj, EventType.WARNING, reason, message)

    async def run(self) -> None:
        """Write what comes; ends once it is stopped and everything is written."""
        while self._waiting or not self._stopping:
            if self._waiting:
                note = next(iter(self._waiting))
                await self._write(note, self._waiting.pop(note))
            else:
                self._changed.clear()
                await self._changed.wait()

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    def _record(self, resource: Resource[T], obj: T, kind: EventType, reason: str, message: str) -> None:
        meta = obj.metadata
        note = EventKey(resource.api_version, resource.kind, meta.key, meta.uid, kind, reason, _cut(message))
        times = EventCounts(now := self._now(), now, 1)
        if note in self._waiting:
            times = self._waiting[note].and_then(times)
        elif len(self._waiting) >= WAITING_LIMIT:
            self._metrics.event_dropped("overflow")
            return
        self._waiting[note] = times
        self._changed.set()

    async def _write(self, note: EventKey, times: EventCounts) -> None:
        if not self._buckets.take(note.uid, asyncio.get_running_loop().time()):
            self._metrics.event_dropped("rate", times.count)
            return
        try:
            key, times = await self._put(note, times)
        except ClusterError as error:
            self._metrics.event_dropped("error", times.count)
            log.warning("event not written", key=str(note.key), kind=note.kind, reason=note.reason, error=str(error))
            return
        self._written[note] = key, times
        self._written.move_to_end(note)
        if len(self._written) > MEMORY:
            self._written.popitem(last=False)

    async def _put(self, note: EventKey, times: EventCounts) -> tuple[Key, EventCounts]:
        if note in self._written:
            key, before = self._written[note]
            times = before.and_then(times)
            try:
                await self._cluster.patch(EVENTS, key, _repeat(times))
                return key, times
            except NotFound:  # the server keeps an Event for an hour after its last change
                pass
        # An object that lives in no namespace has its Events in this one.
        namespace = note.key.namespace or "default"
        made = await self._cluster.create(EVENTS, self._body(note, times), namespace=namespace)
        return made.metadata.key, times

    def _body(self, note: EventKey, times: EventCounts) -> JSON:
        return {
            "metadata": {"generateName": f"{note.key.name}."},
            "involvedObject": {
                "apiVersion": note.api_version,
                "kind": note.kind,
                "namespace": note.key.namespace,
                "name": note.key.name,
                "uid": note.uid,
            },
            "type": note.type.value,
            "reason": note.reason,
            "message": note.message,
            "firstTimestamp": format_time(times.first),
            **_repeat(times),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


def _repeat(times: EventCounts) -> JSON:
    return {"count": times.count, "lastTimestamp": format_time(times.last)}


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
