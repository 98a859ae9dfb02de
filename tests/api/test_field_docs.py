"""The field reference says what the schemas say, and the committed pages are these."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.api import checkpointbackup, trainingjob
from holdfast.api.kind import Kind
from holdfast.api.kinds import KINDS
from holdfast.api.meta import ApiStruct, Object
from holdfast.api.schema.crd import object_schema
from holdfast.api.schema.field_docs import kind_page, pages, shared_page
from holdfast.api.schema.rules import Rule
from tests.api.conftest import ROOT
from tests.docs.markdown import Table, tables, without_code

Schema = dict[str, Any]
PAGES = pages()
SHARED = tables(PAGES["kubernetes.md"])

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


def _page(kind: Kind[Any]) -> str:
    return PAGES[f"{kind.kind.lower()}.md"]


def _row(kind: Kind[Any], section: str, field: str) -> dict[str, str]:
    return tables(_page(kind))[section][f"`{field}`"]


def _schema_paths(schema: Schema, path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        if (
            not path.startswith("spec.jobTemplate") and name != "jobTemplate"
        ):  # a Job's own template, as Kubernetes has it
            yield from _schema_paths(field.get("items", field), f"{path}.{name}")


def _told_paths(own: Table, table: dict[str, dict[str, str]], path: str) -> Iterator[str]:
    """The paths that a reader finds who follows every link."""
    by_anchor = {re.sub(r"[^a-z]", "", title.lower()): title for title in own}
    shared = {title.lower(): title for title in SHARED}
    for cell, row in table.items():
        name = cell.strip("`")
        yield f"{path}.{name}"
        for target in re.findall(r"\]\(([^)]+)\)", without_code(row["type"])):
            page, _, anchor = target.partition("#")
            foreign = page == "kubernetes.md" or own is SHARED
            rows = SHARED[shared[anchor]] if foreign else own[by_anchor[anchor]]
            yield from _told_paths(SHARED if foreign else own, rows, f"{path}.{name}")


def test_the_committed_pages_are_those_of_the_models() -> None:
    committed = {path.name: path.read_text() for path in (ROOT / "docs/fields").iterdir()}
    assert committed == PAGES, "run `make crds`"


@kinds
@pytest.mark.parametrize("half", ["spec", "status"])
def test_a_reader_finds_every_field_and_no_other(kind: Kind[Any], half: str) -> None:
    own = tables(_page(kind))
    schema = object_schema(kind)["properties"][half]
    assert sorted(_told_paths(own, own[half], half)) == sorted(_schema_paths(schema, half))


@kinds
def test_the_page_shows_every_rule_by_its_message(kind: Kind[Any]) -> None:
    def messages(schema: Schema) -> Iterator[str]:
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
        for field in schema.get("properties", {}).values():
            yield from messages(field.get("items", field))

    told = (_page(kind) + PAGES["kubernetes.md"]).replace("\\", "")
    found = set(messages(object_schema(kind)))
    assert found
    assert [message for message in found if message not in told] == []


def test_a_field_shows_its_type_its_default_and_what_it_is_for() -> None:
    row = _row(trainingjob.KIND, "spec", "framework")
    assert row["type"] == "`jax` or `pytorch` or `tensorflow`"
    assert row["default"] == "`pytorch`"
    assert row["description"].startswith("Whose variables tell the workers about each other.")


@pytest.mark.parametrize(
    ("section", "field", "default"),
    [
        ("spec", "model", "required"),
        ("spec", "gpusPerWorker", ""),
        ("spec.checkpoint", "enabled", "`true`"),
        ("spec.checkpoint", "retention", "`3`"),
        ("spec.networking", "masterPort", "`29500`"),
    ],
)
def test_a_default_is_what_the_server_fills_in(section: str, field: str, default: str) -> None:
    assert _row(trainingjob.KIND, section, field)["default"] == default


ONCE_RUN, SUSPENDED, ENDED = "[1](#change)", "[2](#change)", "[3](#change)"


@pytest.mark.parametrize(
    ("section", "field", "change"),
    [
        ("spec", "model", ONCE_RUN),
        ("spec", "image", SUSPENDED),
        ("spec", "numWorkers", ENDED),
        ("spec", "suspend", ENDED),
        ("spec", "ttlSecondsAfterFinished", ""),
        ("spec.hyperparameters", "learningRate", SUSPENDED),  # the whole block is held
        ("spec", "checkpoint", ""),  # only parts of the block are
        ("spec.checkpoint", "frequency", SUSPENDED),
        ("spec.checkpoint", "retention", ""),
        ("spec.checkpoint.storage", "prefix", ONCE_RUN),
        ("spec.failurePolicy", "restartPolicy", SUSPENDED),
        ("spec.failurePolicy", "backoffLimit", ""),
    ],
)
def test_a_field_shows_when_it_may_change(section: str, field: str, change: str) -> None:
    assert _row(trainingjob.KIND, section, field)["change"] == change


def test_what_is_said_of_a_change_is_what_the_server_says() -> None:
    listed = re.findall(r"^(\d)\. (.*)$", _page(trainingjob.KIND), flags=re.MULTILINE)
    assert [number for number, _ in listed] == ["1", "2", "3"]
    assert listed[0][1].startswith("can't change once the training has run")
    assert listed[1][1].startswith("can't change while the training runs")
    assert listed[2][1].startswith("the job has ended")


def test_what_is_reported_has_neither_default_nor_change() -> None:
    assert _row(trainingjob.KIND, "status", "state").keys() == {"field", "type", "description"}


def test_stars_of_a_text_stay_stars() -> None:
    assert r"\*/30 \* \* \* \*" in _row(checkpointbackup.KIND, "spec", "schedule")["description"]


class Inner(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(rule="has(self.a)", message="write a", field=".a"),
        Rule(rule="has(self.b)", message="write a", field=".b"),
        Rule(rule="self.size() > 0", message="write something"),
    )

    a: int = 0
    b: int = 0


class Spec(ApiStruct, frozen=True, kw_only=True):
    inner: tuple[Inner, ...] = ()
    other: Inner | None = None


class Sample(Object, frozen=True, kw_only=True):
    """A sample."""

    spec: Spec = Spec()


SAMPLE = Kind(
    group="example.com",
    versions=("v2", "v1"),
    kind="Sample",
    plural="samples",
    short_name="sa",
    model=Sample,
    columns=(),
)


def test_the_page_shows_a_message_once_with_all_its_fields() -> None:
    page = kind_page(SAMPLE)
    assert page.count("- `a`, `b`: write a\n") == 2  # once for each place
    assert page.count("- write something\n") == 2


def test_a_kind_without_rules_about_changes_has_no_column_for_them() -> None:
    page = kind_page(SAMPLE)
    assert tables(page)["spec"]["`inner`"].keys() == {"field", "type", "default", "description"}
    assert "change" not in page


def test_a_page_begins_with_what_the_kind_is_and_how_it_is_written() -> None:
    assert kind_page(SAMPLE).splitlines()[:5] == [
        "# Sample",
        "",
        "A sample.",
        "",
        "`apiVersion: example.com/v2`, short name `sa`. `kubectl explain sample` knows it too.",
    ]


def test_a_kind_that_shares_nothing_adds_nothing_to_the_shared_page() -> None:
    assert tables(shared_page([SAMPLE])) == {}


def test_the_page_shows_parts_in_the_order_of_the_model_outer_before_inner() -> None:
    assert [*tables(kind_page(SAMPLE))] == ["spec", "spec.inner[]", "spec.other"]


def test_the_module_writes_the_pages_into_a_folder(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "holdfast.api.schema.field_docs", str(tmp_path)], check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == PAGES
