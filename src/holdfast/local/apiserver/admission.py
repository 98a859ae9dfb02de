"""Admission of a submitted document, as in Kubernetes: strict decoding, defaults, validation, metadata."""

import re
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.api.schema import violations
from holdfast.api.schema.crd import Schema
from holdfast.api.schema.validation import rule_violations
from holdfast.api.schema.violations import BLOCKING, Cause, schema_violations, unknown_fields, with_defaults
from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.kinds import QUANTITY, ServedKind, bad_value, forbidden, missing
from holdfast.local.apiserver.objects import (
    PREFIX_LENGTH,
    SUFFIX_ALPHABET,
    SUFFIX_LENGTH,
    label_key_problems,
    label_value_problems,
)

_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
WRONG_TYPE = "FieldValueTypeInvalid"


class DecodedObject(NamedTuple):
    """A decoded document with its defaults, and the problems found so far."""

    draft: JSON
    problems: list[Cause]


def decode_object(kind: ServedKind, version: str, document: JSON, known: JSON | None = None) -> DecodedObject:
    """The document with its defaults; `BadRequest` when a field or a type is not in the kind's schema.

    Parts that are identical objects in `known`, which was decoded before, are not checked again.
    """
    schema = kind.schemas[version]
    document = {**document, **_identity(kind, version, document)}
    unchanged = {name: value for name, value in document.items() if known is not None and value is known.get(name)}
    fresh = {name: value for name, value in document.items() if name not in unchanged}
    unknown = [cause.message.partition(";")[0] for cause in unknown_fields(fresh, schema)]
    if unknown:
        raise BadRequest(f"strict decoding error: {', '.join(unknown)}")
    fresh = {name: value for name, value in with_defaults(fresh, schema).items() if name not in unchanged}
    if not kind.custom:
        fresh = _normalized(fresh, schema)
    problems = _decoding_problems(kind, version, fresh, schema)
    draft = {"metadata": {}, **fresh, **unchanged}
    kind.special.set_defaults(draft)
    return DecodedObject(draft, problems)


def _identity(kind: ServedKind, version: str, document: JSON) -> JSON:
    """apiVersion and kind, which may be left out but must not name another kind."""
    identity = {"apiVersion": kind.api_version(version), "kind": kind.kind}
    for field, expected in identity.items():
        found = document.get(field, expected)
        if found != expected:
            raise BadRequest(f"the {field} in the data ({found}) does not match the expected {field} ({expected})")
    return identity


def _decoding_problems(kind: ServedKind, version: str, fresh: JSON, schema: Schema) -> list[Cause]:
    """Schema problems of a built-in kind; for a custom kind only of its metadata: `schema_problems` adds the rest."""
    properties = {"metadata": schema["properties"]["metadata"]} if kind.custom else schema["properties"]
    part = {name: fresh[name] for name in properties if name in fresh}
    problems = [_cause(cause) for cause in schema_violations(part, {"type": "object", "properties": properties})]
    for cause in problems:
        if cause.reason == WRONG_TYPE:
            raise BadRequest(
                f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {cause.field}: {cause.message}'
            )
    return problems


def schema_problems(kind: ServedKind, version: str, draft: JSON, old: JSON | None) -> Iterator[Cause]:
    """Schema and rule problems of a custom kind; the rules run only when types and bounds are valid."""
    if not kind.custom:
        return
    schema = kind.schemas[version]
    found = list(schema_violations(draft, schema) if old is None else schema_violations(draft, schema, old=old))
    if not any(cause.reason in BLOCKING for cause in found):
        found += rule_violations(_visible(draft), schema, _visible(old) if old else None)
    yield from map(_cause, found)


def _visible(document: JSON) -> JSON:
    """The fields that rules can read: of the metadata only the name, so that a new label does not rerun the rules."""
    metadata = {name: document["metadata"][name] for name in ("name", "generateName") if name in document["metadata"]}
    return {**document, "metadata": metadata}


def _cause(cause: violations.Cause) -> Cause:
    return Cause(cause.field, cause.message, cause.reason)


def _normalized(value: Any, schema: Schema) -> Any:
    """The form in which the server stores built-in kinds: without empty lists and maps, quantities as strings."""
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        children = {name: (child, properties.get(name, others)) for name, child in value.items()}
        return {
            name: child if child_schema is None else _normalized(child, child_schema)
            for name, (child, child_schema) in children.items()
            if child_schema is None or not _is_empty_collection(child, child_schema)
        }
    if isinstance(value, list):
        return [_normalized(element, schema.get("items", {})) for element in value]
    return _quantity(value) if schema.get("format") == QUANTITY else value


def _quantity(value: Any) -> str:
    text = str(value)
    if isinstance(value, bool) or not _QUANTITY.fullmatch(text):
        raise BadRequest(f'quantities must be numbers with an optional unit, such as 500m, 4 or 32Gi, not "{text}"')
    return text


def _is_empty_collection(value: Any, schema: Schema) -> bool:
    return (value == [] and "items" in schema) or (value == {} and "additionalProperties" in schema)


# Object metadata: who may write which field, and which values are valid.

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
# Holds a CustomResourceDefinition until the objects of its kind are gone.
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
STANDARD_FINALIZERS = frozenset({ORPHAN, FOREGROUND, CLEANUP, "kubernetes"})
ANNOTATIONS_BYTES = 256 * 1024

# Only the server writes these; a client may send them back as it read them.
_SERVER_FIELDS = (
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
    metadata = tidied({name: value for name, value in submitted.items() if name not in _SERVER_FIELDS})
    metadata |= {"uid": str(UUID(int=rng.getrandbits(128), version=4)), "creationTimestamp": now}
    return {**metadata, "namespace": namespace} if namespace else metadata


def updated_metadata(submitted: JSON, old: JSON) -> JSON:
    """The metadata of an object after an update; the fields of the server stay as they were."""
    metadata = {name: value for name, value in submitted.items() if name not in _SERVER_FIELDS}
    names = (*_SERVER_FIELDS, "resourceVersion")
    return tidied(metadata | {name: old[name] for name in names if name in old})


def tidied(metadata: JSON) -> JSON:
    """The metadata without the fields that the server does not store, and without empty fields."""
    return {
        name: value
        for name, value in metadata.items()
        if name not in _DROPPED and (value or name not in _OMITTED_WHEN_EMPTY)
    }


def generated_name(prefix: str, rng: Random) -> str:
    return prefix[:PREFIX_LENGTH] + "".join(rng.choice(SUFFIX_ALPHABET) for _ in range(SUFFIX_LENGTH))


def immutable_problems(submitted: JSON, old: JSON) -> Iterator[Cause]:
    """The fields that an update must not change; other fields of the server are silently restored."""
    given_once = ("uid", "deletionGracePeriodSeconds", *(() if "deletionTimestamp" in old else ("deletionTimestamp",)))
    for name in given_once:
        if name in submitted and submitted[name] != old.get(name):
            yield bad_value(f"metadata.{name}", submitted[name], "field is immutable")


def metadata_problems(kind: ServedKind, metadata: JSON, old: JSON | None) -> Iterator[Cause]:
    """The problems of the metadata of a new object, or of an update of `old`."""
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
    # A prefix may end with a character that a name may not end with.
    prefix = metadata.get("generateName", "")
    problems = kind.special.name_problems(f"{prefix}x"[:PREFIX_LENGTH]) if prefix else []
    yield from (bad_value("metadata.generateName", prefix, problem) for problem in problems)


def _annotation_problems(annotations: dict[str, str]) -> Iterator[Cause]:
    for key in annotations:
        # Unlike the prefix of a label, the prefix of an annotation may be in upper case.
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
