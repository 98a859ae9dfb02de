"""Creating, changing and deleting: each step is checked, completed and staged in the ledger."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from random import Random

from holdfast.api.meta import Key
from holdfast.cluster.embedded import admission
from holdfast.cluster.embedded.admission import DecodedObject
from holdfast.cluster.embedded.deletion import ends_with_update, plan_deletion
from holdfast.cluster.embedded.kind import ServedKind
from holdfast.cluster.embedded.ledger import ObjectRef, ObjectTable
from holdfast.cluster.embedded.merge import apply_merge_patch
from holdfast.cluster.embedded.metadata import (
    generated_name,
    immutable_problems,
    metadata_problems,
    new_metadata,
    updated_metadata,
)
from holdfast.cluster.embedded.refusals import (
    already_exists,
    bad_value,
    conflict,
    invalid,
    not_found,
    precondition_failed,
)
from holdfast.cluster.embedded.stored import StoredObject, same, stored
from holdfast.cluster.errors import BadRequest, Cause, Forbidden, ServerError
from holdfast.cluster.protocol import JSON, Propagation
from holdfast.planning.times import format_time

NAME_ATTEMPTS = 8


class ObjectWriter:
    def __init__(self, ledger: ObjectTable, now: Callable[[], datetime], rng: Random) -> None:
        self._ledger = ledger
        self.now = now
        self.rng = rng

    def document(self, resource: str, key: Key) -> JSON | None:
        found = self._ledger.find(ObjectRef(resource, key))
        return found.json() if found else None

    def documents(self, resource: str) -> Iterator[JSON]:
        return (each.json() for each in self._ledger.list_staged(resource))

    def create(self, kind: ServedKind, version: str, body: JSON, namespace: str) -> StoredObject:
        draft, found = admission.decode_object(kind, version, body)
        _check_namespace(draft, namespace)
        if draft["metadata"].get("resourceVersion"):
            raise ServerError("resourceVersion should not be set on objects to be created")
        if kind.namespaced:
            self._check_namespace_active(kind, draft, namespace)
        draft["metadata"] = new_metadata(draft["metadata"], namespace, format_time(self.now()), self.rng)
        self._name(kind, draft)
        if kind.has_status and not kind.special.keeps_status_of_creation:
            draft.pop("status", None)
        if kind.custom:
            draft["metadata"]["generation"] = 1
        _refuse(kind, draft, [*found, *_common_problems(kind, version, draft, None)])
        kind.special.prepare_create(draft, self)
        _refuse(kind, draft, kind.special.validate(draft, None))
        if self._ledger.find(ObjectRef(kind.resource, Key(namespace, draft["metadata"]["name"]))):
            raise already_exists(kind, draft["metadata"]["name"])
        return self._put(kind, draft)

    def replace(self, kind: ServedKind, version: str, key: Key, body: JSON) -> StoredObject:
        old = self.find(kind, key)
        reading = admission.decode_object(kind, version, body)
        draft, metadata = reading.draft, reading.draft["metadata"]
        _check_namespace(draft, key.namespace)
        _check_name(draft, key)
        if metadata.get("uid", old.meta.uid) != old.meta.uid:
            raise precondition_failed(kind, key.name, "UID", metadata["uid"], old.meta.uid)
        if not metadata.get("resourceVersion") and not kind.special.replaced_without_version:
            unversioned = bad_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(kind, key.name, [unversioned])
        return self._update(kind, version, old, reading, status=False)

    def patch(self, kind: ServedKind, version: str, key: Key, patch: JSON, *, status: bool) -> StoredObject:
        old = self.find(kind, key)
        current = {**old.json(), "apiVersion": kind.api_version(version)}
        reading = admission.decode_object(kind, version, apply_merge_patch(current, patch), current)
        _check_namespace(reading.draft, key.namespace)
        _check_name(reading.draft, key)
        return self._update(kind, version, old, reading, status=status)

    def delete(
        self,
        kind: ServedKind,
        key: Key,
        *,
        uid: str,
        resource_version: str,
        propagation: Propagation,
        grace_period_s: int | None,
    ) -> None:
        old = self.find(kind, key)
        if uid and uid != old.meta.uid:
            raise precondition_failed(kind, key.name, "UID", uid, old.meta.uid)
        if resource_version and resource_version != old.meta.resource_version:
            found = old.meta.resource_version
            raise precondition_failed(kind, key.name, "ResourceVersion", resource_version, found)
        verdict = plan_deletion(kind, old.json(), propagation, grace_period_s, self.now())
        last = self._put(kind, verdict.marked) if verdict.marked else old
        if verdict.ends:
            self._ledger.remove(last)

    def overwrite(self, kind: ServedKind, old: StoredObject, draft: JSON) -> StoredObject:
        """The server's own change to an object: what it wants is right."""
        if same(draft, old.json()):
            return old
        if ends_with_update(draft, old.json()):
            self._ledger.remove(old)
            return old
        return self._put(kind, draft)

    def find(self, kind: ServedKind, key: Key) -> StoredObject:
        found = self._ledger.find(ObjectRef(kind.resource, key))
        if found is None:
            raise not_found(kind.resource, key.name)
        return found

    def _update(
        self, kind: ServedKind, version: str, old: StoredObject, reading: DecodedObject, *, status: bool
    ) -> StoredObject:
        draft, found = reading
        before = old.json()
        submitted = draft["metadata"]
        if submitted.get("resourceVersion", old.meta.resource_version) != old.meta.resource_version:
            raise conflict(kind, old.meta.name)
        if not (status and kind.custom):
            # A custom kind's status update has its metadata put back before anybody looks at it.
            _refuse(kind, draft, immutable_problems(submitted, before["metadata"]))
        draft["metadata"] = updated_metadata(submitted, before["metadata"])
        draft = _status_update(kind, draft, before) if status else _main_update(kind, draft, before)
        draft["apiVersion"] = before["apiVersion"]
        versioned = {**draft, "apiVersion": kind.api_version(version)}
        _refuse(kind, draft, [*found, *_common_problems(kind, version, versioned, before)])
        if not status:
            _refuse(kind, draft, kind.special.validate(draft, before))
        if ends_with_update(draft, before):
            self._ledger.remove(old)
            return stored(kind.resource, draft, old.version)
        return old if same(draft, before) else self._put(kind, draft)

    def _put(self, kind: ServedKind, draft: JSON) -> StoredObject:
        return self._ledger.put(kind.resource, {**draft, "apiVersion": kind.api_version(kind.stored_version)})

    def _check_namespace_active(self, kind: ServedKind, draft: JSON, namespace: str) -> None:
        home = self._ledger.find(ObjectRef("namespaces", Key("", namespace)))
        if home is None:
            raise not_found("namespaces", namespace)
        if home.meta.deletion_timestamp:
            raise Forbidden(
                f'{kind.resource} "{draft["metadata"].get("name", "")}" is forbidden: unable to create new content in '
                f"namespace {namespace} because it is being terminated"
            )

    def _name(self, kind: ServedKind, draft: JSON) -> None:
        """Complete a generated name, and what depends on the name."""
        metadata = draft["metadata"]
        if metadata.get("name") or not metadata.get("generateName"):
            return
        for _ in range(NAME_ATTEMPTS):
            metadata["name"] = generated_name(metadata["generateName"], self.rng)
            if not self._ledger.find(ObjectRef(kind.resource, Key(metadata.get("namespace", ""), metadata["name"]))):
                break
        kind.special.set_defaults(draft)


def _main_update(kind: ServedKind, draft: JSON, old: JSON) -> JSON:
    if kind.has_status:
        draft.pop("status", None)
        draft |= {"status": old["status"]} if "status" in old else {}
    kind.special.prepare_update(draft, old)
    if kind.special.counts_generations and not same(_desired_state(kind, draft), _desired_state(kind, old)):
        draft["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    return draft


def _desired_state(kind: ServedKind, document: JSON) -> JSON:
    """What a generation is a state of."""
    if not kind.custom:
        return {"spec": document.get("spec")}
    return {name: value for name, value in document.items() if name not in ("metadata", "apiVersion")}


def _status_update(kind: ServedKind, draft: JSON, old: JSON) -> JSON:
    kept = {name: value for name, value in old.items() if name != "status"}
    if not kind.custom:
        # Kubernetes' own kinds take the metadata along.
        kept["metadata"] = draft["metadata"]
    updated = {**kept, "status": draft["status"]} if "status" in draft else kept
    kind.special.prepare_status_update(updated, old)
    return updated


def _common_problems(kind: ServedKind, version: str, draft: JSON, old: JSON | None) -> Iterator[Cause]:
    yield from metadata_problems(kind, draft["metadata"], old["metadata"] if old else None)
    yield from admission.schema_problems(kind, version, draft, old)


def _refuse(kind: ServedKind, draft: JSON, problems: Iterable[Cause]) -> None:
    causes = list(problems)
    if causes:
        raise invalid(kind, draft["metadata"].get("name", ""), causes)


def _check_namespace(draft: JSON, namespace: str) -> None:
    if draft["metadata"].get("namespace", namespace) != namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def _check_name(draft: JSON, key: Key) -> None:
    name = draft["metadata"].get("name")
    if not name:
        raise BadRequest(f"the name of the object ({key.name} based on URL) was undeterminable: name must be provided")
    if name != key.name:
        raise BadRequest(f"the name of the object ({name}) does not match the name on the URL ({key.name})")
    if key.namespace:
        draft["metadata"]["namespace"] = key.namespace
