"""Writes Grafana's dashboards from dashboards.yaml:

python tools/dashboards.py manifests/monitoring/dashboards
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

JSON = dict[str, Any]
PANELS = Path(__file__).with_suffix(".yaml")
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# What can be chosen at the top.
CHOICES = {
    "namespace": "label_values(trainingjob_total, namespace)",
    "training_job": 'label_values(trainingjob_duration_seconds{namespace=~"$namespace"}, training_job)',
}
SHORT = {
    "{IN": '{namespace=~"$namespace"',
    "{OF": '{namespace=~"$namespace", training_job=~"$training_job"',
}


def dashboards() -> dict[str, str]:
    """As Grafana imports them, by the name of the file."""
    return {f"{each['uid']}.json": _rendered(each) for each in yaml.safe_load(PANELS.read_text())}


def _rendered(dashboard: JSON) -> str:
    body: JSON = {
        "uid": dashboard["uid"],
        "title": dashboard["title"],
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), *map(_choice, dashboard["choices"])]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(dashboard["rows"]), start=1)],
    }
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def _panels(rows: Mapping[str, list[JSON]]) -> Iterator[JSON]:
    """Three beside each other, below the title of their row."""
    top, abreast = 0, COLUMNS // PANEL_WIDTH
    for title, panels in rows.items():
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        yield {"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for number, panel in enumerate(panels):
            line, column = divmod(number, abreast)
            yield _panel(panel, column * PANEL_WIDTH, top + line * PANEL_HEIGHT)
        top += -(-len(panels) // abreast) * PANEL_HEIGHT


def _panel(panel: JSON, left: int, top: int) -> JSON:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": _query(query), "legendFormat": legend}
        for number, (legend, query) in enumerate(panel["queries"].items())
    ]
    return {
        "type": "stat" if panel.get("stat") else "timeseries",
        "title": panel["title"],
        "description": panel.get("about", ""),
        "datasource": SOURCE,
        "gridPos": {"h": PANEL_HEIGHT, "w": PANEL_WIDTH, "x": left, "y": top},
        "fieldConfig": {"defaults": {"unit": panel.get("unit", "short")}, "overrides": []},
        "targets": targets,
    }


def _query(text: str) -> str:
    for short, long in SHORT.items():
        text = text.replace(short, long)
    return text


def _data_source() -> JSON:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _choice(name: str) -> JSON:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": CHOICES[name], "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def main() -> int:
    folder = Path(sys.argv[1])
    for name, text in dashboards().items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
