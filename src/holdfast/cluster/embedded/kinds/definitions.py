"""Definitions of custom kinds, and the kinds that they define."""

from collections.abc import Iterator

from holdfast.api.schema import Schema
from holdfast.api.structure import PRESERVE
from holdfast.cluster.embedded.kind import METADATA_FIELDS, KindHooks, ObjectReader, ServedKind
from holdfast.cluster.embedded.metadata import CLEANUP
from holdfast.cluster.embedded.refusals import bad_value
from holdfast.cluster.embedded.types import type_schema
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON


def _default_definition(definition: JSON) -> None:
    names = definition.get("spec", {}).get("names", {})
    if "kind" in names:
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")


def _prepare_definition(definition: JSON, _around: ObjectReader) -> None:
    spec, metadata = definition["spec"], definition["metadata"]
    metadata["generation"] = 1
    metadata["finalizers"] = [*metadata.get("finalizers", []), CLEANUP]
    definition["status"] = {
        "acceptedNames": spec["names"],
        "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "the kind is served",
                "lastTransitionTime": metadata["creationTimestamp"],
            }
            for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
        ],
    }


def _validate_definition(definition: JSON, _old: JSON | None) -> Iterator[Cause]:
    spec = definition["spec"]
    name = f"{spec['names'].get('plural')}.{spec.get('group')}"
    if definition["metadata"].get("name") != name:
        why = f'must be spec.names.plural+"."+spec.group, here {name}'
        yield bad_value("metadata.name", definition["metadata"].get("name", ""), why)
    stored = [version["name"] for version in spec.get("versions", []) if version.get("storage")]
    if len(stored) != 1:
        yield bad_value("spec.versions", stored, "must have exactly one version marked as storage version")


DEFINITIONS = KindHooks(
    counts_generations=True,
    replaced_without_version=False,
    set_defaults=_default_definition,
    prepare_create=_prepare_definition,
    validate=_validate_definition,
)


def defined_kind(definition: JSON) -> ServedKind:
    """The kind that a stored definition defines."""
    spec = definition["spec"]
    versions = [version for version in spec["versions"] if version.get("served", True)]
    return ServedKind(
        group=spec["group"],
        kind=spec["names"]["kind"],
        plural=spec["names"]["plural"],
        namespaced=spec["scope"] == "Namespaced",
        schemas={version["name"]: _object_schema(version) for version in versions},
        stored_version=next(version["name"] for version in spec["versions"] if version.get("storage")),
        has_status=any("status" in version.get("subresources", {}) for version in versions),
        custom=True,
        special=KindHooks(
            fields=METADATA_FIELDS | _selectable(versions), counts_generations=True, replaced_without_version=False
        ),
    )


def _object_schema(version: JSON) -> Schema:
    schema: Schema = version.get("schema", {}).get("openAPIV3Schema", {"type": "object", PRESERVE: True})
    common = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": type_schema("ObjectMeta")}
    return {**schema, "properties": {**schema.get("properties", {}), **common}}


def _selectable(versions: list[JSON]) -> frozenset[str]:
    fields = (field["jsonPath"] for version in versions for field in version.get("selectableFields", []))
    return frozenset(path.removeprefix(".") for path in fields)
