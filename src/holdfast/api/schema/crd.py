"""From a struct to a structural OpenAPI v3 schema, as a CustomResourceDefinition demands it.

Structural means: every field spelled out in place (no $ref), one type for each, and no alternatives but
x-kubernetes-int-or-string. What a struct's field may leave out is not nullable: it may be absent.
"""

from inspect import cleandoc
from typing import Any, TypeAlias

from msgspec import NODEFAULT, Struct, inspect

from holdfast.api.kind import Kind, PrinterColumn
from holdfast.api.schema.rules import Reason, Rule

Schema: TypeAlias = dict[str, Any]


def struct_schema(struct: type[Struct]) -> Schema:
    """The schema of a struct, with the rules that it carries."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return _object(info)


def _schema(info: inspect.Type) -> Schema:
    match info:
        case inspect.Metadata():
            return {**_schema(info.type), **(info.extra_json_schema or {})}
        case inspect.StructType():
            return _object(info)
        case inspect.UnionType():
            return _union(info)
        case inspect.VarTupleType() | inspect.DictType():
            return _collection(info)
        case _:
            return _scalar(info)


def _object(info: inspect.StructType) -> Schema:
    schema: Schema = {"type": "object"}
    required = [field.encode_name for field in info.fields if field.required]
    if required:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _field(field) for field in info.fields}
    if rules := [_rule(rule) for rule in getattr(info.cls, "RULES", ())]:
        schema["x-kubernetes-validations"] = rules
    return schema


def _field(field: inspect.Field) -> Schema:
    schema = _schema(field.type)
    # An empty or false default says "not written"; one worth showing to the user is something.
    default = field.default
    if default is not NODEFAULT and default and isinstance(default, bool | int | float | str):
        schema["default"] = default
    return schema


def _union(info: inspect.UnionType) -> Schema:
    members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
    if len(members) == 1:
        return _schema(members[0])
    texts = [member for member in members if not isinstance(member, inspect.IntType)]
    if len(members) != 2 or len(texts) != 1:
        raise TypeError(f"a structural schema has no alternatives but integer or string: {info}")
    schema = _schema(texts[0])
    del schema["type"]
    return {**schema, "anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _collection(info: inspect.VarTupleType | inspect.DictType) -> Schema:
    if isinstance(info, inspect.DictType):
        names = {"min_length": "minProperties", "max_length": "maxProperties"}
        schema: Schema = {"type": "object"}
        if not isinstance(info.value_type, inspect.AnyType):
            schema["additionalProperties"] = _schema(info.value_type)
    else:
        names = {"min_length": "minItems", "max_length": "maxItems"}
        schema = {"type": "array", "items": _schema(info.item_type), "x-kubernetes-list-type": "atomic"}
    return {**schema, **_bounds(info, names)}


_NUMBERS = {"ge": "minimum", "le": "maximum"}
_TEXTS = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}


def _scalar(info: inspect.Type) -> Schema:
    match info:
        case inspect.IntType():
            return {"type": "integer", "format": "int32", **_bounds(info, _NUMBERS)}
        case inspect.FloatType():
            exclusive = {"minimum": info.gt, "exclusiveMinimum": True} if info.gt is not None else {}
            return {"type": "number", "format": "double", **_bounds(info, _NUMBERS), **exclusive}
        case inspect.StrType():
            return {"type": "string", **_bounds(info, _TEXTS)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case _:
            raise TypeError(f"no structural schema for {info}")


def _bounds(info: inspect.Type, names: dict[str, str]) -> Schema:
    values = {name: getattr(info, attribute) for attribute, name in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def _rule(rule: Rule) -> Schema:
    schema: Schema = {"rule": rule.rule, "message": rule.message}
    if rule.field:
        schema["fieldPath"] = rule.field
    if rule.reason is not Reason.INVALID:
        schema["reason"] = rule.reason.value
    return schema


# From a kind to its CustomResourceDefinition.

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


def _column(column: PrinterColumn) -> dict[str, Any]:
    shown = {"name": column.name, "type": column.type, "jsonPath": column.path, "description": column.description}
    return {**shown, "priority": 1} if column.wide else shown
