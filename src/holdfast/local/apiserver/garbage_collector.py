"""The garbage collector: what becomes of dependents when their owners go, and of what a namespace or a kind holds.

It follows the writes that are on disk, one step for each object at a time, and never asks more than once: every step
leads to a write that brings the next. What a crash interrupted is found again by looking at everything at the start.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

import structlog

from holdfast.api.meta import Key, OwnerReference
from holdfast.cluster.errors import ServerError
from holdfast.cluster.protocol import JSON, Change, Propagation
from holdfast.local.apiserver.admission import CLEANUP, FOREGROUND, ORPHAN
from holdfast.local.apiserver.catalog import DEFINITIONS, Catalog
from holdfast.local.apiserver.objects import ObjectRef, ObjectTable
from holdfast.local.apiserver.storage import StoredObject, StoredWrite
from holdfast.local.apiserver.writes import ObjectWriter
from holdfast.times import parse_time

NAMESPACES = "namespaces"
RETRY_S = 1.0
# As long as the API server's own controller waits, for creations under way to end before it looks.
NAMESPACE_DELAY_S = 5.0

log = structlog.get_logger(__name__)


class GarbageCollector:
    def __init__(self, ledger: ObjectTable, catalog: Catalog, writer: ObjectWriter) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._writer = writer
        # In the order of arrival, each place once.
        self._queue: dict[ObjectRef, None] = {}
        self._woken = asyncio.Event()

    def enqueue(self, writes: Iterable[StoredWrite]) -> None:
        """Look again at every object that these writes may concern."""
        for write in writes:
            self._add(write.new)
            if write.change is Change.DELETED:
                self._add_place(ObjectRef(NAMESPACES, Key("", write.new.meta.namespace)))
                self._add_place(ObjectRef(DEFINITIONS, Key("", write.new.resource)))
            if write.change is Change.DELETED or _waits_for_dependents(write.new):
                self._add(*self._ledger.dependents(write.new.meta.uid))
            owners = (self._ledger.owner(reference.uid) for reference in write.new.meta.owner_references)
            self._add(*(owner for owner in owners if owner is not None and _waits_for_dependents(owner)))

    def notice_everything(self) -> None:
        for resource in sorted(self._ledger.resources()):
            self._add(*self._ledger.list_staged(resource))

    async def run(self) -> None:
        """Collect, for ever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            batch, self._queue = self._queue, {}
            for place in batch:
                self._settle_safely(place)
            try:
                await self._ledger.flushed()
            except ServerError as error:
                log.warning("garbage collection is delayed", error=str(error), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                self._queue = batch | self._queue
                self._woken.set()

    def _settle_safely(self, place: ObjectRef) -> None:
        """One object that can't be dealt with must not stop the collection of all others."""
        try:
            self._process(place)
        except Exception:
            log.exception("an object could not be collected", resource=place.resource, key=str(place.key))

    def _add(self, *objects: StoredObject) -> None:
        for each in objects:
            place = ObjectRef(each.resource, each.key)
            if each.resource == NAMESPACES and each.meta.deletion_timestamp:
                asyncio.get_running_loop().call_later(NAMESPACE_DELAY_S, self._add_place, place)
            elif each.meta.owner_references or each.meta.deletion_timestamp:
                self._add_place(place)

    def _add_place(self, place: ObjectRef) -> None:
        self._queue[place] = None
        self._woken.set()

    def _process(self, place: ObjectRef) -> None:
        """Take the object's next step, if there is one."""
        found = self._ledger.find(place)
        if found is None:
            return
        if not found.meta.deletion_timestamp:
            self._collect_if_orphaned(found)
        elif place.resource == NAMESPACES:
            self._empty_namespace(found)
        elif place.resource == DEFINITIONS and CLEANUP in found.meta.finalizers:
            self._empty_kind(found)
        elif FOREGROUND in found.meta.finalizers:
            self._end_in_foreground(found)
        elif ORPHAN in found.meta.finalizers:
            self._orphan(found)

    def _collect_if_orphaned(self, item: StoredObject) -> None:
        """Delete an object that all its owners have left; take dead references off one that some own still."""
        owners = item.meta.owner_references
        dead = {reference.uid for reference in owners if self._is_dead(reference, item)}
        waiting = {reference.uid for reference in owners if self._is_waiting(reference)}
        if not dead and not waiting:
            return
        if len(dead | waiting) < len({reference.uid for reference in owners}):
            self._drop_owner(item, dead | waiting)
            return
        dependents = self._ledger.dependents(item.meta.uid)
        if waiting and dependents:
            if any(_waits_for_dependents(each) for each in dependents):
                item = self._unblock(item)
            self._delete(item, Propagation.FOREGROUND)
        else:
            self._delete(item, _inherited(item))

    def _is_dead(self, reference: OwnerReference, item: StoredObject) -> bool:
        # Of a kind that is not served nobody can say whether the owner is there.
        if not self._catalog.serves(reference.api_version, reference.kind):
            return False
        owner = self._ledger.owner(reference.uid)
        return (
            owner is None or owner.meta.name != reference.name or owner.meta.namespace not in ("", item.meta.namespace)
        )

    def _is_waiting(self, reference: OwnerReference) -> bool:
        owner = self._ledger.owner(reference.uid)
        return owner is not None and _waits_for_dependents(owner)

    def _end_in_foreground(self, owner: StoredObject) -> None:
        """The owner goes after the last dependent that blocks it; those are deleted in their own step."""
        blocking = (
            reference.block_owner_deletion
            for dependent in self._ledger.dependents(owner.meta.uid)
            for reference in dependent.meta.owner_references
            if reference.uid == owner.meta.uid
        )
        if not any(blocking):
            self._release(owner, FOREGROUND)

    def _orphan(self, owner: StoredObject) -> None:
        for dependent in self._ledger.dependents(owner.meta.uid):
            current = self._ledger.find(ObjectRef(dependent.resource, dependent.key))
            if current is not None:
                self._drop_owner(current, {owner.meta.uid})
        self._release(owner, ORPHAN)

    def _empty_namespace(self, namespace: StoredObject) -> None:
        inside = [
            each
            for resource in sorted(self._ledger.resources())
            for each in self._ledger.list_staged(resource)
            if each.meta.namespace == namespace.meta.name
        ]
        self._delete_all(inside)
        if not inside:
            self._overwrite(namespace, {**namespace.json(), "spec": {}})

    def _empty_kind(self, definition: StoredObject) -> None:
        instances = list(self._ledger.list_staged(definition.meta.name))
        self._delete_all(instances)
        if not instances:
            self._release(definition, CLEANUP)

    def _delete_all(self, objects: list[StoredObject]) -> None:
        for each in sorted(objects, key=lambda each: (each.resource, each.key)):
            if not each.meta.deletion_timestamp:
                self._delete(each, Propagation.BACKGROUND)

    def _delete(self, item: StoredObject, propagation: Propagation) -> None:
        kind = self._catalog.kind_of(item.resource)
        if kind is not None:
            self._writer.delete(
                kind, item.key, uid=item.meta.uid, resource_version="", propagation=propagation, grace_period_s=None
            )

    def _release(self, item: StoredObject, finalizer: str) -> None:
        document = item.json()
        kept = [each for each in document["metadata"]["finalizers"] if each != finalizer]
        self._change_metadata(item, document, "finalizers", kept)

    def _drop_owner(self, item: StoredObject, uids: set[str]) -> None:
        document = item.json()
        kept = [each for each in document["metadata"].get("ownerReferences", []) if each["uid"] not in uids]
        self._change_metadata(item, document, "ownerReferences", kept)

    def _unblock(self, item: StoredObject) -> StoredObject:
        """Break a circle of owners that wait for each other."""
        document = item.json()
        owners = [{**each, "blockOwnerDeletion": False} for each in document["metadata"]["ownerReferences"]]
        return self._change_metadata(item, document, "ownerReferences", owners)

    def _change_metadata(self, item: StoredObject, document: JSON, field: str, value: Sequence[object]) -> StoredObject:
        metadata = {name: each for name, each in document["metadata"].items() if name != field}
        return self._overwrite(item, {**document, "metadata": {**metadata, field: value} if value else metadata})

    def _overwrite(self, item: StoredObject, document: JSON) -> StoredObject:
        kind = self._catalog.kind_of(item.resource)
        return item if kind is None else self._writer.overwrite(kind, item, document)


def _waits_for_dependents(item: StoredObject) -> bool:
    return bool(item.meta.deletion_timestamp) and FOREGROUND in item.meta.finalizers


def _inherited(item: StoredObject) -> Propagation:
    """A finalizer that is there already says how the object is to be deleted."""
    if ORPHAN in item.meta.finalizers:
        return Propagation.ORPHAN
    return Propagation.FOREGROUND if FOREGROUND in item.meta.finalizers else Propagation.BACKGROUND


# Events tell what happened lately: the API server forgets each an hour after it was last told, and so do we.

EVENTS = "events"
EVENT_LIFE = timedelta(hours=1)
SWEEP_S = 300.0


async def expire_events(ledger: ObjectTable, now: Callable[[], datetime]) -> None:
    """Sweep, for ever."""
    while True:
        await asyncio.sleep(SWEEP_S)
        for event in list(ledger.list_staged(EVENTS)):
            if last_seen(event.json()) < now() - EVENT_LIFE:
                ledger.remove(event)
        try:
            await ledger.flushed()
        except ServerError as error:
            log.warning("old events could not be removed", error=str(error), retry_s=SWEEP_S)


def last_seen(event: JSON) -> datetime:
    """The latest of the times that an event carries."""
    told = (
        event["metadata"]["creationTimestamp"],
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("series", {}).get("lastObservedTime"),
    )
    return max(parse_time(time) for time in told if time)
