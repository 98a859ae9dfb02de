"""promtool takes the rules, and each alert fires when it should and is silent when it should be."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.conftest import Promtool
from tests.monitoring.manifests import groups, rules

JSON = dict[str, Any]
CASES: dict[str, JSON] = yaml.safe_load(Path(__file__).with_name("alerts.yaml").read_text())


@pytest.fixture
def rule_file(tmp_path: Path) -> Path:
    """As Prometheus reads it."""
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups()}))
    return file


def test_every_alert_is_tried_firing_and_silent() -> None:
    assert list(CASES) == list(rules())
    assert all(case["fires"] and case["silent"] for case in CASES.values())


def test_promtool_takes_the_rules(promtool: Promtool, rule_file: Path) -> None:
    said = promtool("check", "rules", "--lint-fatal", str(rule_file))
    assert f"SUCCESS: {len(rules())} rules found" in said


def tried(promtool: Promtool, rule_file: Path, name: str, case: JSON, alerts: list[JSON], **more: Any) -> str:
    trial = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case["series"].items()],
        "alert_rule_test": [{"eval_time": case["at"], "alertname": name, "exp_alerts": alerts}],
    }
    file = rule_file.with_name("trial.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rule_file.name], "evaluation_interval": "1m", "tests": [trial]}))
    return promtool("test", "rules", str(file), **more)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_and_says_what_is_wrong_with_what(promtool: Promtool, rule_file: Path, name: str) -> None:
    case, rule = CASES[name]["fires"], rules()[name]
    alert = {
        "exp_labels": {**case["labels"], "severity": rule["labels"]["severity"]},
        "exp_annotations": {
            "summary": case["summary"],
            "description": case["description"],
            "runbook_url": rule["annotations"]["runbook_url"],
        },
    }
    assert "SUCCESS" in tried(promtool, rule_file, name, case, [alert])
    said = case["summary"] + case["description"]
    assert all(value in said for value in case["labels"].values()), "a name is missing"


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, case in CASES.items() for number in range(len(case["silent"]))]
)
def test_an_alert_is_silent(promtool: Promtool, rule_file: Path, name: str, number: int) -> None:
    assert "SUCCESS" in tried(promtool, rule_file, name, CASES[name]["silent"][number], [])


def test_a_firing_alert_that_is_not_expected_is_a_failure(promtool: Promtool, rule_file: Path) -> None:
    """Else silence would prove nothing."""
    case = CASES["HoldfastNodeAgentSilent"]["fires"]
    assert "FAILED" in tried(promtool, rule_file, "HoldfastNodeAgentSilent", case, [], codes=(1,))
