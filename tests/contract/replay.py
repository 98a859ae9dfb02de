"""Operations carried out on a cluster, and recorded in the model's terms."""

from collections import defaultdict
from collections.abc import Sequence

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import JSON, Change, Cluster, DeleteOptions, Event

from .kinds import GADGETS, Document, gadget
from .operations import Create, Delete, Gadget, Guard, Operation, Outcome, Patch, PatchStatus, Recording, Replace, Step
from .watching import follow, is_about

LAST = "last"
FOREIGN_UID = "11111111-2222-3333-4444-555555555555"


class Replay:
    """Remembers the versions and uids that the operations speak of only as current, stale or foreign."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._versions: dict[str, list[str]] = defaultdict(lambda: ["1"])
        self._uids: dict[str, list[str]] = defaultdict(list)
        self._marks: list[str] = []

    async def record(self, operations: Sequence[Operation]) -> Recording:
        start = (await self._cluster.list(GADGETS, namespace=self._namespace)).resource_version
        outcomes = [await self._outcome(operation) for operation in operations]
        await self._cluster.create(GADGETS, gadget(LAST), namespace=self._namespace)
        history = await self._seen_from(start)
        resumed = [await self._seen_from(mark) for mark in self._marks]
        return Recording(tuple(outcomes), history, tuple(resumed))

    async def _outcome(self, operation: Operation) -> Outcome:
        try:
            return await self._carry_out(operation)
        except ClusterError as error:
            return Outcome(error=type(error).__name__)

    async def _carry_out(self, operation: Operation) -> Outcome:
        cluster = self._cluster
        match operation:
            case Create(name=name, size=size, labels=labels, finalizers=finalizers):
                body = gadget(name, spec={"size": size}, labels=labels, finalizers=list(finalizers))
                return self._answer(await cluster.create(GADGETS, body, namespace=self._namespace))
            case Patch(name=name):
                return self._answer(await cluster.patch(GADGETS, self._key(name), self._patch(operation)))
            case Replace(name=name, size=size, labels=labels, finalizers=finalizers):
                metadata = {"labels": labels, "finalizers": list(finalizers), **self._replaced(operation)}
                body = gadget(name, spec={"size": size}, **metadata)
                return self._answer(await cluster.replace(GADGETS, self._key(name), body))
            case PatchStatus(name=name, phase=phase, size=size):
                patch = {
                    "metadata": self._guarded(name, operation.guard),
                    "spec": {"size": size},
                    "status": {"phase": phase},
                }
                return self._answer(await cluster.patch_status(GADGETS, self._key(name), patch))
            case Delete(name=name, guard=guard):
                return await self._delete(name, guard)
            case _:
                listing = await cluster.list(GADGETS, namespace=self._namespace, labels=operation.label)
                self._marks.append(listing.resource_version)
                return Outcome(names=tuple(sorted(item.metadata.name for item in listing.items)))

    async def _delete(self, name: str, guard: Guard) -> Outcome:
        found = self._guarded(name, guard)
        version, uid = found.get("resourceVersion", ""), found.get("uid", "")
        await self._cluster.delete(GADGETS, self._key(name), DeleteOptions(uid=uid, resource_version=version))
        await self._look(name)
        return Outcome()

    async def _look(self, name: str) -> None:
        """A delete answers with nothing: what it left has a new version, which the next guard is about."""
        listing = await self._cluster.list(GADGETS, namespace=self._namespace, fields=f"metadata.name={name}")
        for item in listing.items:
            self._answer(item)

    def _patch(self, operation: Patch) -> JSON:
        patch: JSON = {"metadata": {**self._guarded(operation.name, operation.guard), "labels": operation.labels}}
        if operation.finalizers is not None:
            patch["metadata"]["finalizers"] = list(operation.finalizers)
        if operation.size is not None:
            patch["spec"] = {"size": operation.size}
        return patch

    def _replaced(self, operation: Replace) -> dict[str, str]:
        guard = self._guarded(operation.name, operation.guard)
        if operation.guard is Guard.FOREIGN:
            guard |= self._guarded(operation.name, Guard.CURRENT)
        return guard

    def _guarded(self, name: str, guard: Guard) -> dict[str, str]:
        """What of metadata states the guard; of an object that never was, what is about as wrong."""
        match guard:
            case Guard.CURRENT:
                return {"resourceVersion": self._versions[name][-1]}
            case Guard.STALE:
                return {"resourceVersion": self._versions[name][-2:][0]}
            case Guard.UID:
                return {"uid": (self._uids[name] or [FOREIGN_UID])[-1]}
            case Guard.FOREIGN:
                return {"uid": FOREIGN_UID}
            case _:
                return {}

    def _answer(self, document: Document) -> Outcome:
        name, version = document.metadata.name, document.metadata.resource_version
        if version != self._versions[name][-1]:
            self._versions[name].append(version)
        return Outcome(gadget=self._known(document))

    def _known(self, document: Document) -> Gadget:
        uids = self._uids[document.metadata.name]
        if document.metadata.uid not in uids:
            uids.append(document.metadata.uid)
        return Gadget(
            incarnation=uids.index(document.metadata.uid) + 1,
            size=document.spec["size"],
            labels=document.metadata.labels,
            finalizers=document.metadata.finalizers,
            phase=document.status.get("phase", ""),
            generation=document.metadata.generation,
            deleting=bool(document.metadata.deletion_timestamp),
        )

    async def _seen_from(self, version: str) -> tuple[Step, ...]:
        events = await follow(
            self._cluster,
            GADGETS,
            version=version,
            namespace=self._namespace,
            stop=is_about(Change.ADDED, LAST),
        )
        return tuple(self._step(event) for event in events[:-1])

    def _step(self, event: Event[Document]) -> Step:
        assert event.object is not None
        return Step(event.change.value, event.object.metadata.name, self._known(event.object))

    def _key(self, name: str) -> Key:
        return Key(self._namespace, name)
