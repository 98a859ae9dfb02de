"""Writes Events about objects for their users, without ever delaying a reconcile.

These are core/v1 Events: `kubectl describe` and `kubectl get events` show their count and both times ("x12 over 2h"),
and a repeat is a plain patch of the count. The newer events.k8s.io/v1 allows no change but the series, which older
tools do not show.
"""

import asyncio
from collections import OrderedDict
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar

import structlog
from msgspec import Struct

from holdfast.api.meta import Key, Object, ObjectMeta
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.runtime.http import RateLimiter
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import Now
from holdfast.times import format_time

T = TypeVar("T", bound=Object)

# Only the name of an Event is read again.
EVENTS = Resource(group="", version="v1", kind="Event", plural="events", model=Object)

COMPONENT = "holdfast"
MESSAGE_LIMIT = 1024
WAITING_LIMIT = 10_000
# Per object, as client-go has it: 25 writes at once, then one in five minutes.
BURST = 25
REFILL_S = 300.0
# How many Events and objects are remembered; the least recently used are forgotten.
MEMORY = 4096

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class EventKey(NamedTuple):
    """One message about one object; the same key again is a repeat."""

    api_version: str
    kind: str
    key: Key
    uid: str
    type: EventType
    reason: str
    message: str


class EventCounts(Struct, frozen=True):
    """When an Event was recorded, and how often."""

    first: datetime
    last: datetime
    count: int

    def and_then(self, later: "EventCounts") -> "EventCounts":
        return EventCounts(self.first, later.last, self.count + later.count)


class Recorder:
    """Records Events at once and writes them in the background; a repeat raises a count."""

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
        """An expected step."""
        self._record(resource, obj, EventType.NORMAL, reason, message)

    def warning(self, resource: Resource[T], obj: T, reason: str, message: str) -> None:
        """A problem that the object's owner may have to fix."""
        self._record(resource, obj, EventType.WARNING, reason, message)

    async def run(self) -> None:
        """Write recorded Events; ends after `stop` once all Events are written."""
        while self._waiting or not self._stopping:
            if self._waiting:
                event = next(iter(self._waiting))
                await self._write(event, self._waiting.pop(event))
            else:
                self._changed.clear()
                await self._changed.wait()

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    def _record(self, resource: Resource[T], obj: T, kind: EventType, reason: str, message: str) -> None:
        meta = obj.metadata
        event = EventKey(resource.api_version, resource.kind, meta.key, meta.uid, kind, reason, _truncate(message))
        counts = EventCounts(now := self._now(), now, 1)
        if event in self._waiting:
            counts = self._waiting[event].and_then(counts)
        elif len(self._waiting) >= WAITING_LIMIT:
            self._metrics.event_dropped("overflow")
            return
        self._waiting[event] = counts
        self._changed.set()

    async def _write(self, event: EventKey, counts: EventCounts) -> None:
        if not self._buckets.take(event.uid, asyncio.get_running_loop().time()):
            self._metrics.event_dropped("rate", counts.count)
            return
        try:
            key, counts = await self._put(event, counts)
        except ClusterError as error:
            self._metrics.event_dropped("error", counts.count)
            log.warning("event not written", key=str(event.key), kind=event.kind, reason=event.reason, error=str(error))
            return
        self._written[event] = key, counts
        self._written.move_to_end(event)
        if len(self._written) > MEMORY:
            self._written.popitem(last=False)

    async def _put(self, event: EventKey, counts: EventCounts) -> tuple[Key, EventCounts]:
        if event in self._written:
            key, before = self._written[event]
            counts = before.and_then(counts)
            try:
                await self._cluster.patch(EVENTS, key, _count_fields(counts))
                return key, counts
            except NotFound:  # the API server retains an Event for an hour after its last change
                pass
        # A cluster-scoped object has its Events in the namespace default.
        namespace = event.key.namespace or "default"
        created = await self._cluster.create(EVENTS, self._body(event, counts), namespace=namespace)
        return created.metadata.key, counts

    def _body(self, event: EventKey, counts: EventCounts) -> JSON:
        return {**_body(event, counts, self._instance), "metadata": {"generateName": f"{event.key.name}."}}


def event_body(
    resource: Resource[T], meta: ObjectMeta, kind: EventType, reason: str, message: str, *, at: datetime, instance: str
) -> JSON:
    """An Event without metadata, for a writer that names it itself so that a repeated create finds the first one."""
    event = EventKey(resource.api_version, resource.kind, meta.key, meta.uid, kind, reason, _truncate(message))
    return _body(event, EventCounts(at, at, 1), instance)


def _body(event: EventKey, counts: EventCounts, instance: str) -> JSON:
    return {
        "involvedObject": {
            "apiVersion": event.api_version,
            "kind": event.kind,
            "namespace": event.key.namespace,
            "name": event.key.name,
            "uid": event.uid,
        },
        "type": event.type.value,
        "reason": event.reason,
        "message": event.message,
        "firstTimestamp": format_time(counts.first),
        **_count_fields(counts),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
    }


def _count_fields(counts: EventCounts) -> JSON:
    return {"count": counts.count, "lastTimestamp": format_time(counts.last)}


def _truncate(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
