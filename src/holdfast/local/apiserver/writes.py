"""Creates, updates and deletes: each write is validated, defaulted and staged in the object table."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from random import Random

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.api.schema.violations import Cause
from holdfast.cluster.errors import BadRequest, Forbidden, ServerError
from holdfast.cluster.protocol import JSON, DeleteOptions, Propagation
from holdfast.cluster.resources import apply_merge_patch
from holdfast.local.apiserver import admission
from holdfast.local.apiserver.admission import (
    FOREGROUND,
    ORPHAN,
    DecodedObject,
    generated_name,
    immutable_problems,
    metadata_problems,
    new_metadata,
    updated_metadata,
)
from holdfast.local.apiserver.builtin.others import CONTENT, UNDELETABLE
from holdfast.local.apiserver.kinds import (
    ServedKind,
    already_exists,
    bad_value,
    conflict,
    invalid,
    not_found,
    precondition_failed,
)
from holdfast.local.apiserver.objects import ObjectRef, ObjectTable
from holdfast.local.apiserver.storage import StoredObject, same, stored
from holdfast.times import format_time, parse_time

# Deletion: an object is marked as terminating, for its finalizers and its grace period, or removed.

_FINALIZER = {Propagation.FOREGROUND: FOREGROUND, Propagation.ORPHAN: ORPHAN}


class DeletionResult(Struct, frozen=True, kw_only=True):
    """The object marked as terminating, if the mark changes it, and whether the object is removed now."""

    marked: JSON | None = None
    ends: bool


def plan_deletion(
    kind: ServedKind, document: JSON, propagation: Propagation, grace_period_s: int | None, now: datetime
) -> DeletionResult:
    if _has_content(document):
        if document["metadata"]["name"] in UNDELETABLE:
            name = document["metadata"]["name"]
            raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        return _marked_only(document, _terminating(document, now))
    if kind.special.grace_s is not None:
        graceful = _delete_gracefully(kind, document, propagation, grace_period_s, now)
        if graceful is not None:
            return graceful
    marked = _with_propagation(document, propagation)
    if not marked["metadata"].get("finalizers"):
        return DeletionResult(ends=True)
    return _marked_only(document, _mark(marked, now, 0))


def ends_with_update(new: JSON, old: JSON) -> bool:
    """Whether an update removed the last finalizer of a terminating object that only waited for this."""
    before = old["metadata"]
    return (
        bool(before.get("deletionTimestamp"))
        and not new["metadata"].get("finalizers")
        and not before.get("deletionGracePeriodSeconds")
        and not _has_content(new)
    )


def _has_content(document: JSON) -> bool:
    """Whether the object is a namespace that is not emptied yet."""
    is_namespace = (document["apiVersion"], document["kind"]) == ("v1", "Namespace")
    return is_namespace and CONTENT in document.get("spec", {}).get("finalizers", [])


def _delete_gracefully(
    kind: ServedKind, document: JSON, propagation: Propagation, asked_s: int | None, now: datetime
) -> DeletionResult | None:
    """The deletion of an object that its kubelet ends; None when no grace period is left."""
    metadata = document["metadata"]
    if "deletionTimestamp" in metadata:
        left_s = metadata.get("deletionGracePeriodSeconds")
        if not left_s:
            return None
        if asked_s is None or asked_s >= left_s:
            return DeletionResult(ends=False)
        # Counted from the first request; the result can't be in the past.
        asked_at = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=left_s)
        ends_at = asked_at + timedelta(seconds=asked_s)
        period_s = asked_s if ends_at >= now or asked_s == 0 else 1
        marked = _with_propagation(document, propagation)
        marked["metadata"] |= {
            "deletionTimestamp": format_time(max(ends_at, now)),
            "deletionGracePeriodSeconds": period_s,
        }
    else:
        assert kind.special.grace_s is not None
        period_s = kind.special.grace_s(document, asked_s)
        marked = _mark(_with_propagation(document, propagation), now, period_s)
    stays = period_s > 0 or bool(marked["metadata"].get("finalizers"))
    return DeletionResult(marked=marked, ends=not stays)


def _with_propagation(document: JSON, propagation: Propagation) -> JSON:
    """Sets the finalizer that holds the owner until the garbage collector has processed its dependents."""
    metadata = dict(document["metadata"])
    finalizers = [each for each in metadata.pop("finalizers", []) if each not in (ORPHAN, FOREGROUND)]
    if propagation in _FINALIZER:
        finalizers.append(_FINALIZER[propagation])
    return {**document, "metadata": {**metadata, "finalizers": finalizers} if finalizers else metadata}


def _mark(document: JSON, now: datetime, grace_period_s: int) -> JSON:
    metadata = document["metadata"]
    # The mark is a change of the desired state.
    if "deletionTimestamp" not in metadata and "generation" in metadata:
        metadata["generation"] += 1
    ends_at = now + timedelta(seconds=grace_period_s)
    if "deletionTimestamp" not in metadata or parse_time(metadata["deletionTimestamp"]) > ends_at:
        metadata["deletionTimestamp"] = format_time(ends_at)
    metadata["deletionGracePeriodSeconds"] = grace_period_s
    return document


def _terminating(namespace: JSON, now: datetime) -> JSON:
    metadata = {"deletionTimestamp": format_time(now), **namespace["metadata"]}
    return {**namespace, "metadata": metadata, "status": {**namespace["status"], "phase": "Terminating"}}


def _marked_only(old: JSON, new: JSON) -> DeletionResult:
    return DeletionResult(marked=None if same(old, new) else new, ends=False)


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
        if kind.has_status and not kind.special.accepts_status_on_create:
            draft.pop("status", None)
        if kind.custom:
            draft["metadata"]["generation"] = 1
        _raise_if_invalid(kind, draft, [*found, *_common_problems(kind, version, draft, None)])
        kind.special.prepare_create(draft, self)
        _raise_if_invalid(kind, draft, kind.special.validate(draft, None))
        if self._ledger.find(ObjectRef(kind.resource, Key(namespace, draft["metadata"]["name"]))):
            raise already_exists(kind, draft["metadata"]["name"])
        return self._put(kind, draft)

    def replace(self, kind: ServedKind, version: str, key: Key, body: JSON) -> StoredObject:
        old = self.find(kind, key)
        decoded = admission.decode_object(kind, version, body)
        draft, metadata = decoded.draft, decoded.draft["metadata"]
        _check_namespace(draft, key.namespace)
        _check_name(draft, key)
        if metadata.get("uid", old.meta.uid) != old.meta.uid:
            raise precondition_failed(kind, key.name, "UID", metadata["uid"], old.meta.uid)
        if not metadata.get("resourceVersion") and not kind.special.allows_unversioned_replace:
            unversioned = bad_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(kind, key.name, [unversioned])
        return self._update(kind, version, old, decoded, status=False)

    def patch(self, kind: ServedKind, version: str, key: Key, patch: JSON, *, status: bool) -> StoredObject:
        old = self.find(kind, key)
        current = {**old.json(), "apiVersion": kind.api_version(version)}
        decoded = admission.decode_object(kind, version, apply_merge_patch(current, patch), current)
        _check_namespace(decoded.draft, key.namespace)
        _check_name(decoded.draft, key)
        return self._update(kind, version, old, decoded, status=status)

    def delete(self, kind: ServedKind, key: Key, options: DeleteOptions) -> None:
        old = self.find(kind, key)
        if options.uid and options.uid != old.meta.uid:
            raise precondition_failed(kind, key.name, "UID", options.uid, old.meta.uid)
        if options.resource_version and options.resource_version != old.meta.resource_version:
            found = old.meta.resource_version
            raise precondition_failed(kind, key.name, "ResourceVersion", options.resource_version, found)
        deletion = plan_deletion(kind, old.json(), options.propagation, options.grace_period_s, self.now())
        last = self._put(kind, deletion.marked) if deletion.marked else old
        if deletion.ends:
            self._ledger.remove(last)

    def overwrite(self, kind: ServedKind, old: StoredObject, draft: JSON) -> StoredObject:
        """A change by the server itself, which needs no validation."""
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
        self, kind: ServedKind, version: str, old: StoredObject, decoded: DecodedObject, *, status: bool
    ) -> StoredObject:
        draft, found = decoded
        before = old.json()
        submitted = draft["metadata"]
        if submitted.get("resourceVersion", old.meta.resource_version) != old.meta.resource_version:
            raise conflict(kind, old.meta.name)
        if not (status and kind.custom):
            # For a status update of a custom kind the metadata is restored before any validation.
            _raise_if_invalid(kind, draft, immutable_problems(submitted, before["metadata"]))
        draft["metadata"] = updated_metadata(submitted, before["metadata"])
        draft = _status_update(kind, draft, before) if status else _main_update(kind, draft, before)
        draft["apiVersion"] = before["apiVersion"]
        versioned = {**draft, "apiVersion": kind.api_version(version)}
        _raise_if_invalid(kind, draft, [*found, *_common_problems(kind, version, versioned, before)])
        if not status:
            _raise_if_invalid(kind, draft, kind.special.validate(draft, before))
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
        """Generate the name from its prefix, and set the defaults that depend on the name."""
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
    """The fields whose change increments the generation."""
    if not kind.custom:
        return {"spec": document.get("spec")}
    return {name: value for name, value in document.items() if name not in ("metadata", "apiVersion")}


def _status_update(kind: ServedKind, draft: JSON, old: JSON) -> JSON:
    retained = {name: value for name, value in old.items() if name != "status"}
    if not kind.custom:
        # A status update of a built-in kind also updates the metadata.
        retained["metadata"] = draft["metadata"]
    updated = {**retained, "status": draft["status"]} if "status" in draft else retained
    kind.special.prepare_status_update(updated, old)
    return updated


def _common_problems(kind: ServedKind, version: str, draft: JSON, old: JSON | None) -> Iterator[Cause]:
    yield from metadata_problems(kind, draft["metadata"], old["metadata"] if old else None)
    yield from admission.schema_problems(kind, version, draft, old)


def _raise_if_invalid(kind: ServedKind, draft: JSON, problems: Iterable[Cause]) -> None:
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
