"""What the page about machines lists is what the code and the manifests have."""

import re
from pathlib import Path

import yaml

from holdfast.machines.joining import JoinStep
from holdfast.providers.gcp import permissions
from tests.docs.markdown import tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "machines.md").read_text()
TABLES = tables(PAGE)


def _literals(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_the_page_lists_exactly_the_permissions_that_every_machine_needs() -> None:
    section = PAGE.split("## What the service account may do\n", 1)[1]
    table = section.split("| permission | for |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) != []
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == set(permissions.MINIMAL)


def test_the_page_lists_what_each_field_needs_besides() -> None:
    section = PAGE.split("Some fields of a SpotInstanceVM need more:", 1)[1].split("\n\n", 2)[1]
    rows = re.findall(r"^\| `([^`]+)`[^|]*\|([^|]*)\|", section, re.MULTILINE)
    assert {field: _literals(needs) for field, needs in rows} == {
        field: set(needs) for field, needs in permissions.FOR_FIELDS.items()
    }


def test_the_page_lists_every_step_of_the_join() -> None:
    row = TABLES["The life of a machine"]["Join"]["time"]
    assert row.endswith(": " + ", ".join(JoinStep))


def test_the_page_names_what_the_manifest_allows() -> None:
    documents = list(yaml.safe_load_all((ROOT / "manifests/operator/spot.yaml").read_text()))
    rules = [
        rule
        for each in documents
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] == "holdfast-machines"
        for rule in each["rules"]
    ]
    told = " ".join(TABLES["What the operator may do in the cluster"])
    assert {resource for rule in rules for resource in rule["resources"]} == {"nodes", "namespaces", "secrets"}
    for verb in (verb for rule in rules for verb in rule["verbs"]):
        assert f"`{verb}`" in told
