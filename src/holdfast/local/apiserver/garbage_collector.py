"""The garbage collector: deletes dependents of deleted owners and the contents of namespaces and kinds; expires events.

It follows the committed writes, one step per object at a time, and never polls: every step leads to a write that
triggers the next step. Steps that a crash interrupted are found by a scan of all objects at the start.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

import structlog

from holdfast.api.meta import Key, OwnerReference
from holdfast.cluster.errors import ServerError
from holdfast.cluster.protocol import JSON, Change, DeleteOptions, Propagation
from holdfast.local.apiserver.admission import CLEANUP, FOREGROUND, ORPHAN
from holdfast.local.apiserver.catalog import DEFINITIONS, Catalog
from holdfast.local.apiserver.objects import ObjectRef, ObjectTable
from holdfast.local.apiserver.storage import StoredObject, StoredWrite
from holdfast.local.apiserver.writes import ObjectWriter
from holdfast.times import parse_time

NAMESPACES = "namespaces"
RETRY_S = 1.0
# The delay of the Kubernetes namespace controller: creations in progress end before the namespace is scanned.
NAMESPACE_DELAY_S = 5.0

log = structlog.get_logger(__name__)


class GarbageCollector:
    def __init__(self, ledger: ObjectTable, catalog: Catalog, writer: ObjectWriter) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._writer = writer
        # In order of arrival, each object once.
        self._queue: dict[ObjectRef, None] = {}
        self._wakeup = asyncio.Event()

    def enqueue(self, writes: Iterable[StoredWrite]) -> None:
        """Queue every object that these writes may affect."""
        for write in writes:
            self._add(write.new)
            if write.change is Change.DELETED:
                self._add_ref(ObjectRef(NAMESPACES, Key("", write.new.meta.namespace)))
                self._add_ref(ObjectRef(DEFINITIONS, Key("", write.new.resource)))
            if write.change is Change.DELETED or _waits_for_dependents(write.new):
                self._add(*self._ledger.dependents(write.new.meta.uid))
            owners = (self._ledger.owner(reference.uid) for reference in write.new.meta.owner_references)
            self._add(*(owner for owner in owners if owner is not None and _waits_for_dependents(owner)))

    def enqueue_all(self) -> None:
        for resource in sorted(self._ledger.resources()):
            self._add(*self._ledger.list_staged(resource))

    async def run(self) -> None:
        """Collect garbage until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            batch, self._queue = self._queue, {}
            for ref in batch:
                self._process_safely(ref)
            try:
                await self._ledger.flushed()
            except ServerError as error:
                log.warning("garbage collection is delayed", error=str(error), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                self._queue = batch | self._queue
                self._wakeup.set()

    def _process_safely(self, ref: ObjectRef) -> None:
        """An object that can't be processed must not stop the collection of the others."""
        try:
            self._process(ref)
        except Exception:
            log.exception("an object could not be collected", resource=ref.resource, key=str(ref.key))

    def _add(self, *objects: StoredObject) -> None:
        for each in objects:
            ref = ObjectRef(each.resource, each.key)
            if each.resource == NAMESPACES and each.meta.deletion_timestamp:
                asyncio.get_running_loop().call_later(NAMESPACE_DELAY_S, self._add_ref, ref)
            elif each.meta.owner_references or each.meta.deletion_timestamp:
                self._add_ref(ref)

    def _add_ref(self, ref: ObjectRef) -> None:
        self._queue[ref] = None
        self._wakeup.set()

    def _process(self, ref: ObjectRef) -> None:
        """Carry out the object's next step, if there is one."""
        found = self._ledger.find(ref)
        if found is None:
            return
        if not found.meta.deletion_timestamp:
            self._collect_if_orphaned(found)
        elif ref.resource == NAMESPACES:
            self._empty_namespace(found)
        elif ref.resource == DEFINITIONS and CLEANUP in found.meta.finalizers:
            self._empty_kind(found)
        elif FOREGROUND in found.meta.finalizers:
            self._delete_in_foreground(found)
        elif ORPHAN in found.meta.finalizers:
            self._orphan(found)

    def _collect_if_orphaned(self, item: StoredObject) -> None:
        """Delete an object without living owners; remove dead references from an object that still has one."""
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
        # For a kind that is not served, it is unknown whether the owner exists.
        if not self._catalog.serves(reference.api_version, reference.kind):
            return False
        owner = self._ledger.owner(reference.uid)
        return (
            owner is None or owner.meta.name != reference.name or owner.meta.namespace not in ("", item.meta.namespace)
        )

    def _is_waiting(self, reference: OwnerReference) -> bool:
        owner = self._ledger.owner(reference.uid)
        return owner is not None and _waits_for_dependents(owner)

    def _delete_in_foreground(self, owner: StoredObject) -> None:
        """The owner is deleted after its last blocking dependent; each dependent is deleted in its own step."""
        blocking = (
            reference.block_owner_deletion
            for dependent in self._ledger.dependents(owner.meta.uid)
            for reference in dependent.meta.owner_references
            if reference.uid == owner.meta.uid
        )
        if not any(blocking):
            self._remove_finalizer(owner, FOREGROUND)

    def _orphan(self, owner: StoredObject) -> None:
        for dependent in self._ledger.dependents(owner.meta.uid):
            current = self._ledger.find(ObjectRef(dependent.resource, dependent.key))
            if current is not None:
                self._drop_owner(current, {owner.meta.uid})
        self._remove_finalizer(owner, ORPHAN)

    def _empty_namespace(self, namespace: StoredObject) -> None:
        contents = [
            each
            for resource in sorted(self._ledger.resources())
            for each in self._ledger.list_staged(resource)
            if each.meta.namespace == namespace.meta.name
        ]
        self._delete_all(contents)
        if not contents:
            self._overwrite(namespace, {**namespace.json(), "spec": {}})

    def _empty_kind(self, definition: StoredObject) -> None:
        instances = list(self._ledger.list_staged(definition.meta.name))
        self._delete_all(instances)
        if not instances:
            self._remove_finalizer(definition, CLEANUP)

    def _delete_all(self, objects: list[StoredObject]) -> None:
        for each in sorted(objects, key=lambda each: (each.resource, each.key)):
            if not each.meta.deletion_timestamp:
                self._delete(each, Propagation.BACKGROUND)

    def _delete(self, item: StoredObject, propagation: Propagation) -> None:
        kind = self._catalog.kind_of(item.resource)
        if kind is not None:
            self._writer.delete(kind, item.key, DeleteOptions(uid=item.meta.uid, propagation=propagation))

    def _remove_finalizer(self, item: StoredObject, finalizer: str) -> None:
        document = item.json()
        remaining = [each for each in document["metadata"]["finalizers"] if each != finalizer]
        self._change_metadata(item, document, "finalizers", remaining)

    def _drop_owner(self, item: StoredObject, uids: set[str]) -> None:
        document = item.json()
        remaining = [each for each in document["metadata"].get("ownerReferences", []) if each["uid"] not in uids]
        self._change_metadata(item, document, "ownerReferences", remaining)

    def _unblock(self, item: StoredObject) -> StoredObject:
        """Break a cycle of owners that wait for each other."""
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
    """An existing finalizer decides how the object is deleted."""
    if ORPHAN in item.meta.finalizers:
        return Propagation.ORPHAN
    return Propagation.FOREGROUND if FOREGROUND in item.meta.finalizers else Propagation.BACKGROUND


# Event expiry: as in Kubernetes, an Event is deleted an hour after it was last seen.

EVENTS = "events"
EVENT_LIFE = timedelta(hours=1)
SWEEP_S = 300.0


async def expire_events(ledger: ObjectTable, now: Callable[[], datetime]) -> None:
    """Delete old Events until cancelled."""
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
    """The latest timestamp of an Event."""
    timestamps = (
        event["metadata"]["creationTimestamp"],
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("series", {}).get("lastObservedTime"),
    )
    return max(parse_time(time) for time in timestamps if time)
