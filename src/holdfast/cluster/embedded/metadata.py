"""What every object carries: who may write which part of it, and what it may hold."""

from collections.abc import Iterator
from random import Random
from uuid import UUID

from holdfast.cluster.embedded.kind import ServedKind
from holdfast.cluster.embedded.names import (
    PREFIX_LENGTH,
    SUFFIX_ALPHABET,
    SUFFIX_LENGTH,
    label_key_problems,
    label_value_problems,
)
from holdfast.cluster.embedded.refusals import bad_value, forbidden, missing
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
# Holds the definition of a kind until the objects of the kind are gone.
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
STANDARD_FINALIZERS = frozenset({ORPHAN, FOREGROUND, CLEANUP, "kubernetes"})
ANNOTATIONS_BYTES = 256 * 1024

# Only the server writes these; a client that sends them back, as it read them, means no harm.
_SERVERS_OWN = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_DROPPED = ("managedFields", "selfLink")
_OMITTED_WHEN_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences", "generateName", "namespace")


def new_metadata(submitted: JSON, namespace: str, now: str, rng: Random) -> JSON:
    """The metadata of a new object."""
    kept = tidied({name: value for name, value in submitted.items() if name not in _SERVERS_OWN})
    kept |= {"uid": str(UUID(int=rng.getrandbits(128), version=4)), "creationTimestamp": now}
    return {**kept, "namespace": namespace} if namespace else kept


def updated_metadata(submitted: JSON, old: JSON) -> JSON:
    """The metadata of an object after an update: what is the server's own stays as it was."""
    kept = {name: value for name, value in submitted.items() if name not in _SERVERS_OWN}
    names = (*_SERVERS_OWN, "resourceVersion")
    return tidied(kept | {name: old[name] for name in names if name in old})


def tidied(metadata: JSON) -> JSON:
    """Without what the server does not keep, and without empty parts."""
    return {
        name: value
        for name, value in metadata.items()
        if name not in _DROPPED and (value or name not in _OMITTED_WHEN_EMPTY)
    }


def generated_name(prefix: str, rng: Random) -> str:
    return prefix[:PREFIX_LENGTH] + "".join(rng.choice(SUFFIX_ALPHABET) for _ in range(SUFFIX_LENGTH))


def immutable_problems(submitted: JSON, old: JSON) -> Iterator[Cause]:
    """What an update must not try to change; other things of the server's own are silently put back."""
    given_once = ("uid", "deletionGracePeriodSeconds", *(() if "deletionTimestamp" in old else ("deletionTimestamp",)))
    for name in given_once:
        if name in submitted and submitted[name] != old.get(name):
            yield bad_value(f"metadata.{name}", submitted[name], "field is immutable")


def metadata_problems(kind: ServedKind, metadata: JSON, old: JSON | None) -> Iterator[Cause]:
    """What is wrong with the metadata of a new object, or of an update of `old`."""
    yield from _name_problems(kind, metadata)
    for key, value in metadata.get("labels", {}).items():
        yield from (bad_value("metadata.labels", key, problem) for problem in label_key_problems(key))
        yield from (bad_value("metadata.labels", value, problem) for problem in label_value_problems(value))
    yield from _annotation_problems(metadata.get("annotations", {}))
    yield from _finalizer_problems(metadata.get("finalizers", []), custom=kind.custom)
    yield from _owner_problems(metadata.get("ownerReferences", []))
    if old is not None and old.get("deletionTimestamp"):
        added = sorted(set(metadata.get("finalizers", [])) - set(old.get("finalizers", [])))
        if added:
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
            yield forbidden("metadata.finalizers", why)


def _name_problems(kind: ServedKind, metadata: JSON) -> Iterator[Cause]:
    name = metadata.get("name", "")
    if not name:
        yield missing("metadata.name", "name or generateName is required")
        return
    yield from (bad_value("metadata.name", name, problem) for problem in kind.special.name_problems(name))
    # A prefix may end as a name may not.
    prefix = metadata.get("generateName", "")
    problems = kind.special.name_problems(f"{prefix}x"[:PREFIX_LENGTH]) if prefix else []
    yield from (bad_value("metadata.generateName", prefix, problem) for problem in problems)


def _annotation_problems(annotations: dict[str, str]) -> Iterator[Cause]:
    for key in annotations:
        # Unlike a label's, the prefix of an annotation may be in upper case.
        yield from (bad_value("metadata.annotations", key, problem) for problem in label_key_problems(key.lower()))
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > ANNOTATIONS_BYTES:
        why = f"Too long: may not be more than {ANNOTATIONS_BYTES} bytes"
        yield Cause("metadata.annotations", why, "FieldValueTooLong")


def _finalizer_problems(finalizers: list[str], *, custom: bool) -> Iterator[Cause]:
    for index, finalizer in enumerate(finalizers):
        problems = label_key_problems(finalizer)
        if not (problems or custom or "/" in finalizer or finalizer in STANDARD_FINALIZERS):
            problems = ["name is neither a standard finalizer name nor is it fully qualified"]
        yield from (bad_value(f"metadata.finalizers[{index}]", finalizer, problem) for problem in problems)
    if ORPHAN in finalizers and FOREGROUND in finalizers:
        yield bad_value("metadata.finalizers", finalizers, f"{ORPHAN} and {FOREGROUND} cannot be both set")


def _owner_problems(owners: list[JSON]) -> Iterator[Cause]:
    for owner in owners:
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield bad_value(f"metadata.ownerReferences.{field}", "", "must not be empty")
    controllers = [f"{owner.get('kind')}/{owner.get('name')}" for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        found = " and ".join(controllers[:2])
        why = f'Only one reference can have Controller set to true. Found "true" in references for {found}'
        yield bad_value("metadata.ownerReferences", [owner.get("name") for owner in owners], why)
