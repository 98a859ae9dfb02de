"""Every panel and every rule in a real Prometheus that scrapes the registries of operator and agent."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.runtime.http import metrics_app, serve_app
from tests.monitoring.manifests import FOLDER, Query, dashboards, queries, rules
from tests.monitoring.samples import agent_registry, operator_registry
from tests.monitoring.server import HOST, Prometheus, Target, has_value, scraping

# What the Prometheus Operator says of a target, beside the relabelings of the PodMonitor.
OPERATOR = {"namespace": "holdfast-system", "pod": "holdfast-operator-abc", "service": "holdfast-operator-metrics"}
AGENT = {"namespace": "holdfast-node", "pod": "holdfast-node-xyz"}


def endpoint(file: str, key: str) -> dict[str, Any]:
    (found,) = yaml.safe_load((FOLDER / file).read_text())["spec"][key]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
async def scraped(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    operator, agent = endpoint("servicemonitor.yaml", "endpoints"), endpoint("podmonitor.yaml", "podMetricsEndpoints")
    relabelled = {each["targetLabel"]: "gpu-1" for each in agent["relabelings"]}
    async with (
        serve_app(metrics_app(operator_registry()), host=HOST, port=0, option="--metrics-port") as first,
        serve_app(metrics_app(agent_registry()), host=HOST, port=0, option="--metrics-port") as second,
        scraping(
            prometheus,
            tmp_path_factory.mktemp("prometheus"),
            {
                "holdfast-operator": Target(first, operator["honorLabels"], OPERATOR),
                "holdfast-node": Target(second, agent["honorLabels"], {**AGENT, **relabelled}),
            },
        ) as server,
    ):
        yield server


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.name)
async def test_a_panel_shows_something_and_its_legend_names_labels_that_are_there(
    scraped: Prometheus, query: Query
) -> None:
    found = await scraped.query(query.text)
    assert has_value(found), query.text
    assert all(set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= series["metric"].keys() for series in found)


async def test_the_namespace_of_a_job_is_the_job_s_own(scraped: Prometheus) -> None:
    """Without honorLabels it would be the operator's, and the job's would be called exported_namespace."""
    (series,) = await scraped.query('trainingjob_loss{training_job="bert"}')
    assert series["metric"]["namespace"] == "ml"
    assert series["metric"]["pod"] == "holdfast-operator-abc"


async def test_the_choices_at_the_top_have_something_to_choose_from(scraped: Prometheus) -> None:
    for board in dashboards().values():
        for choice in board["templating"]["list"]:
            if choice["type"] == "query":
                asked = choice["query"]["query"].removeprefix("label_values(").removesuffix(")")
                metric, label = asked.rsplit(", ", 1)
                found = await scraped.query(metric.replace("$namespace", ".*"))
                assert {series["metric"][label] for series in found} >= {"ml" if label == "namespace" else "bert"}


async def test_every_rule_is_evaluated(scraped: Prometheus) -> None:
    found = await scraped.rules()
    assert {rule["name"] for rule in found} == set(rules())
    assert {rule["name"]: rule["lastError"] for rule in found if rule.get("lastError")} == {}
