"""From a kind to its CustomResourceDefinition."""

from inspect import cleandoc
from typing import Any

from holdfast.api.kind import Column, Kind
from holdfast.api.schema import Schema, struct_schema

CATEGORY = "holdfast"


def crd_manifest(kind: Kind[Any]) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind, as plain JSON."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(kind), "labels": {"app.kubernetes.io/part-of": "holdfast"}},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short_name],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [_version(kind, name) for name in kind.versions],
        },
    }


def object_schema(kind: Kind[Any]) -> Schema:
    """The schema of a whole object of the kind: its model, and what every object carries."""
    model = struct_schema(kind.model)
    properties = {
        "apiVersion": {"type": "string", "description": f"Version of this schema: {kind.api_version}."},
        "kind": {"type": "string", "description": f"Always {kind.kind}."},
        # Rules may blame metadata.name only where the schema has it; the server refuses any other word about metadata.
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
        "spec": model["properties"]["spec"],
        "status": model["properties"]["status"],
    }
    description = " ".join(cleandoc(kind.model.__doc__ or "").split())
    return {**model, "description": description, "required": ["spec"], "properties": properties}


def _version(kind: Kind[Any], name: str) -> dict[str, Any]:
    subresources: dict[str, Any] = {"status": {}}
    if kind.scale is not None:
        subresources["scale"] = {
            "specReplicasPath": kind.scale.spec_replicas_path,
            "statusReplicasPath": kind.scale.status_replicas_path,
            "labelSelectorPath": kind.scale.label_selector_path,
        }
    return {
        "name": name,
        "served": True,
        "storage": name == kind.versions[0],
        "schema": {"openAPIV3Schema": object_schema(kind)},
        "subresources": subresources,
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }


def _column(column: Column) -> dict[str, Any]:
    shown = {"name": column.name, "type": column.type, "jsonPath": column.path, "description": column.description}
    return {**shown, "priority": 1} if column.wide else shown
