"""The table of Kubernetes' own types."""

from collections.abc import Iterator

import pytest

from holdfast.api.schema.crd import Schema
from holdfast.api.schema.violations import schema_violations
from holdfast.local.apiserver.catalog import builtin_kinds
from holdfast.local.apiserver.kinds import type_schema

KINDS = {kind.resource: kind for kind in builtin_kinds()}


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from fields(schema[inner], f"{path}[]")


@pytest.mark.parametrize("resource", KINDS)
def test_every_kind_is_described_down_to_its_scalars(resource: str) -> None:
    found = dict(fields(KINDS[resource].schemas["v1"]))
    assert ".metadata.ownerReferences[].uid" in found
    for path, schema in found.items():
        described = {"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"} & set(schema)
        assert described, path


@pytest.mark.parametrize("resource", KINDS)
def test_every_default_keeps_to_its_own_schema(resource: str) -> None:
    for path, schema in fields(KINDS[resource].schemas["v1"]):
        if schema.get("default"):
            wrong = [cause for cause in schema_violations(schema["default"], schema) if "Required" not in cause.message]
            assert wrong == [], path


def test_a_field_is_its_type_and_its_rules() -> None:
    properties = type_schema("ContainerPort")["properties"]
    assert properties["containerPort"] == {"type": "integer", "minimum": 1, "maximum": 65535}
    assert properties["protocol"] == {"type": "string", "enum": ["TCP", "UDP", "SCTP"], "default": "TCP"}
    assert type_schema("ContainerPort")["required"] == ["containerPort"]
    assert type_schema("EnvVar")["properties"]["name"] == {"type": "string", "minLength": 1}
    assert type_schema("JobSpec")["properties"]["suspend"] == {"type": "boolean", "default": False}
    assert type_schema("PodSpec")["properties"]["nodeSelector"]["additionalProperties"] == {"type": "string"}
