"""What manifests/monitoring has: rules, dashboards with their queries, and how targets are scraped."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

JSON = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "manifests" / "monitoring"
# What Grafana puts in the place of its variables: the range of scrapes a second apart, and All.
VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "1h",
    "$namespace": ".*",
    "$training_job": ".*",
}
_LEFT_OUT = (
    r'"[^"]*"',
    r"\{[^}]*\}",
    r"\[[^]]*\]",
    r"\b(by|on|without|ignoring)\s*\([^)]*\)",
    r"\boffset\s+\w+",
    r"\b\d[\w.]*",
    r"\b(and|or|unless)\b",
)


class Query(NamedTuple):
    name: str
    text: str
    legend: str


def groups() -> list[JSON]:
    found: list[JSON] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    return found


def rules() -> dict[str, JSON]:
    """The rules by the names of their alerts."""
    return {rule["alert"]: rule for group in groups() for rule in group["rules"]}


def dashboards() -> dict[str, JSON]:
    return {path.name: json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").glob("*.json"))}


def queries() -> list[Query]:
    """Of every panel, as Grafana sends them."""
    return [
        Query(f"{board['title']}, {panel['title']}, {target['refId']}", _filled(target["expr"]), target["legendFormat"])
        for board in dashboards().values()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def _filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def series_of(query: str) -> set[str]:
    """The series that a query names."""
    for pattern in _LEFT_OUT:
        query = re.sub(pattern, " ", query)
    return set(re.findall(r"\b[a-z_]\w*\b(?!\s*\()", query))
