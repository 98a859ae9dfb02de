"""Rules and dashboards name what is exported; every alert has a page; targets are scraped where they are."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.markdown import tables
from tests.monitoring.catalogue import PAGE, base_name, listed
from tests.monitoring.manifests import FOLDER, Query, dashboards, queries, rules, series_of
from tools.dashboards import dashboards as generated

CHECKOUT = FOLDER.parents[1]
RUNBOOKS = CHECKOUT / "docs" / "runbooks"
SEVERITIES = {"critical", "warning", "info"}


def unknown(query: str) -> set[str]:
    names = {name: base_name(name) for name in series_of(query)}
    known = listed()
    return {name for name, base in names.items() if name not in known and base not in known and "process_" not in name}


@pytest.mark.parametrize(("name", "query"), [(name, rule["expr"]) for name, rule in rules().items()])
def test_what_an_alert_asks_for_is_exported(name: str, query: str) -> None:
    assert series_of(query)
    assert unknown(query) == set()


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.name)
def test_what_a_panel_asks_for_is_exported(query: Query) -> None:
    assert series_of(query.text)
    assert unknown(query.text) == set()
    assert "$" not in query.text, "a variable that is not filled in"


def test_a_name_that_nobody_exports_is_found() -> None:
    query = 'sum by (le) (rate(trainingjob_speed_bucket{namespace="x"}[5m])) > 2 * max(trainingjob_total offset 1h)'
    assert unknown(query) == {"trainingjob_speed_bucket"}


@pytest.mark.parametrize("name", rules())
def test_an_alert_says_whom_it_wakes_what_it_is_and_where_to_read_on(name: str) -> None:
    rule = rules()[name]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
    text = (CHECKOUT / rule["annotations"]["runbook_url"]).read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Look", "Do"]
    assert "    kubectl " in text


def test_every_runbook_is_of_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*rules(), "README"}


def test_the_pages_list_every_alert_with_its_severity() -> None:
    rows = tables(PAGE.read_text())["Alerts"]
    shown = {re.sub(r"\[(\w+)\].*", r"\1", name): row["severity"] for name, row in rows.items()}
    assert shown == {name: rule["labels"]["severity"] for name, rule in rules().items()}
    assert re.findall(r"^- \[(\w+)\]", (RUNBOOKS / "README.md").read_text(), re.MULTILINE) == list(rules())


def test_the_dashboards_are_those_that_their_source_makes() -> None:
    written = {path.name: path.read_text() for path in (FOLDER / "dashboards").glob("*.json")}
    assert written == generated(), "run `make dashboards`"


def test_the_page_lists_every_dashboard() -> None:
    rows = tables(PAGE.read_text())["Dashboards"]
    assert {f"{name.strip('`')}.json" for name in rows} == set(dashboards())


def test_no_two_panels_of_a_dashboard_lie_on_each_other() -> None:
    for board in dashboards().values():
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in board["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells)), board["title"]
        assert max(x for x, _ in cells) < 24


def test_the_pod_monitor_finds_the_agents() -> None:
    monitor = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())
    daemonset = yaml.safe_load((FOLDER.parent / "node" / "daemonset.yaml").read_text())
    template = daemonset["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == [daemonset["metadata"]["namespace"]]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = template["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}


KINDS = ["ConfigMap"] * 4 + ["PodMonitor", "PrometheusRule", "ServiceMonitor"]


def built(kubectl: Path, folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_the_folder_is_built_with_all_that_is_in_it(binaries: Path) -> None:
    objects = built(binaries / "kubectl", FOLDER)
    assert sorted(each["kind"] for each in objects) == KINDS
    assert {each["metadata"]["namespace"] for each in objects} == {"holdfast-system"}
    maps = [each for each in objects if each["kind"] == "ConfigMap"]
    assert {name for each in maps for name in each["data"]} == set(dashboards())
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)


def test_the_component_adds_the_same(binaries: Path, tmp_path: Path) -> None:
    shutil.copytree(FOLDER.parent, tmp_path / "manifests")
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"components": ["manifests/components/monitoring"]}))
    assert sorted(each["kind"] for each in built(binaries / "kubectl", tmp_path)) == KINDS
