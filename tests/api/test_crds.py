"""The CustomResourceDefinitions: what is in them, and that the committed ones are these."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from holdfast.api.kind import Kind
from holdfast.api.kinds import KINDS, kind_of
from holdfast.api.schema.crd import crd_manifest, object_schema
from holdfast.cli.commands import crds
from holdfast.cli.crds import manifests
from tests.api.conftest import ROOT

Schema = dict[str, Any]
CRDS = typer.Typer()
CRDS.command()(crds)

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


def _fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field of a schema with its path; [] are the elements of a list, {} the values of a map."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from _fields(field, f"{path}.{name}")
    for name, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if name in schema:
            yield f"{path}{mark}", schema[name]
            yield from _fields(schema[name], f"{path}{mark}")


def test_the_committed_definitions_are_those_of_the_models() -> None:
    folder = ROOT / "manifests/crds"
    committed = {path.name: path.read_text() for path in folder.iterdir()}
    assert committed == manifests(), "run `make crds`"


@kinds
def test_every_field_is_described(kind: Kind[Any]) -> None:
    fields = [(path, field) for path, field in _fields(object_schema(kind)) if not path.endswith(("[]", "{}"))]
    assert len(fields) > 10
    undescribed = [
        path for path, field in fields if not field.get("description", "").endswith(".") and ".metadata" not in path
    ]
    assert undescribed == []


@kinds
def test_a_schema_is_structural(kind: Kind[Any]) -> None:
    for path, field in _fields(object_schema(kind)):
        assert not {"$ref", "oneOf", "allOf", "not", "nullable", "definitions"} & field.keys(), path
        assert ("type" in field) is not ("x-kubernetes-int-or-string" in field), path
        assert "properties" not in field or "additionalProperties" not in field, path


@kinds
def test_everything_that_a_user_writes_is_bounded_so_that_rules_stay_affordable(kind: Kind[Any]) -> None:
    unbounded = [
        path
        for path, field in _fields(object_schema(kind)["properties"]["spec"], ".spec")
        if (field.get("type") == "string" and not {"maxLength", "enum"} & field.keys())
        or (field.get("type") == "array" and "maxItems" not in field)
        or ("additionalProperties" in field and "maxProperties" not in field)
    ]
    assert unbounded == []


@kinds
def test_only_a_job_template_keeps_what_it_does_not_know(kind: Kind[Any]) -> None:
    preserving = [
        path for path, field in _fields(object_schema(kind)) if field.get("x-kubernetes-preserve-unknown-fields")
    ]
    assert all(path.startswith(".spec.jobTemplate") for path in preserving)
    assert bool(preserving) is (kind.kind == "SpotInstanceJob")


@kinds
def test_every_kind_reports_in_the_same_way(kind: Kind[Any]) -> None:
    status = object_schema(kind)["properties"]["status"]["properties"]
    assert status["observedGeneration"]["format"] == "int64"
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert set(status["conditions"]["items"]["required"]) >= {"type", "status", "reason", "message"}


@kinds
def test_a_definition_says_how_the_kind_is_served(kind: Kind[Any]) -> None:
    crd = crd_manifest(kind)
    spec = crd["spec"]
    assert crd["metadata"]["name"] == f"{kind.plural}.{kind.group}"
    assert spec["names"]["categories"] == ["holdfast"]
    assert spec["names"]["shortNames"] == [kind.short_name]
    assert [version["storage"] for version in spec["versions"]] == [True] + [False] * (len(kind.versions) - 1)
    assert all(version["served"] and version["subresources"]["status"] == {} for version in spec["versions"])


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("TrainingJob", ["STATE", "PROGRESS", "EPOCH", "AGE"]),
        ("GPUWorkload", ["PHASE", "NODE", "GPUS", "STRATEGY", "RETRIES", "AGE"]),
    ],
)
def test_the_plain_view_has_exactly_these_columns(name: str, columns: list[str]) -> None:
    (kind,) = (kind for kind in KINDS if kind.kind == name)
    shown = crd_manifest(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in shown if not column.get("priority")] == columns


@kinds
def test_a_column_shows_a_field_that_is_there(kind: Kind[Any]) -> None:
    paths = {path for path, _ in _fields(object_schema(kind))}
    for column in kind.columns:
        # .a[*].b, .a[0].b and .a[?(…)].b are all fields of a list's elements.
        plain = re.sub(r"\[[^]]*\]", "[]", column.path)
        known = plain in paths or plain.startswith((".metadata.", ".status.metrics."))
        assert known, f"{column.name} shows {column.path}"


def test_scaling_goes_by_fields_that_are_there() -> None:
    (kind,) = (kind for kind in KINDS if kind.scale is not None)
    paths = {path for path, _ in _fields(object_schema(kind))}
    assert kind.scale is not None
    assert {kind.scale.spec_replicas_path, kind.scale.status_replicas_path, kind.scale.label_selector_path} <= paths


@pytest.mark.parametrize(
    ("api_version", "kind", "plural"),
    [
        ("ml.example.com/v1", "TrainingJob", "trainingjobs"),
        ("migration.dcnlab.com/v1", "CheckpointBackup", "checkpointbackups"),
        ("migration.dcnlab.com/v1alpha1", "CheckpointBackup", "checkpointbackups"),
        ("ml.example.com/v1alpha1", "TrainingJob", None),
        ("ml.example.com/v1", "GPUWorkload", None),
        ("v1", "Pod", None),
        ("", "", None),
    ],
)
def test_a_kind_is_found_by_its_version_and_name(api_version: str, kind: str, plural: str | None) -> None:
    found = kind_of(api_version, kind)
    assert (found and found.plural) == plural


def test_the_command_prints_all_definitions_as_one_stream() -> None:
    result = CliRunner().invoke(CRDS)
    printed = list(yaml.safe_load_all(result.stdout))
    assert result.exit_code == 0
    assert printed == [crd_manifest(kind) for kind in KINDS]
    assert CliRunner().invoke(CRDS).stdout == result.stdout


def test_the_command_writes_a_file_for_each_definition(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "crds"
    assert CliRunner().invoke(CRDS, ["--output", str(folder)]).exit_code == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == manifests()


def test_the_command_says_where_it_could_not_write(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = CliRunner().invoke(CRDS, ["--output", str(tmp_path / "taken" / "crds")])
    assert result.exit_code == 2
    assert "can't write the CustomResourceDefinitions" in result.stderr
