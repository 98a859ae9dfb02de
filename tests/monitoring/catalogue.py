"""The catalogue of metrics: what docs/metrics.md lists, and what a registry has."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric

from tests.docs.markdown import tables

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
# What a histogram has as series.
SUFFIXES = ("_bucket", "_sum", "_count")
# The client library's own, of the process.
PROCESS = "process_"


class Described(NamedTuple):
    type: str
    labels: frozenset[str]


def listed() -> dict[str, Described]:
    """The metrics of the page, by name."""
    found = {}
    for rows in tables(PAGE.read_text()).values():
        for name, row in rows.items():
            if {"type", "labels", "what it says"} <= row.keys():
                assert row["what it says"], f"{name} is not explained"
                assert name not in found, f"{name} is listed twice"
                labels = frozenset(filter(None, re.split(r", *", row["labels"])))
                found[name.strip("`")] = Described(row["type"], labels)
    return found


def exposed(families: Iterable[Metric]) -> dict[str, Described]:
    """The metrics of a registry or of a scraped text, by the names that Prometheus knows them by."""
    found, families = {}, list(families)
    names = {family.name for family in families}
    for family in families:
        # The client library tells with each counter and histogram since when it counts.
        since = family.name.endswith("_created") and family.name.removesuffix("_created") in names
        if since or family.name.startswith(PROCESS):
            continue
        assert family.documentation, f"{family.name} is not explained"
        is_counter = family.type == "counter" and not family.name.endswith("_total")
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        found[f"{family.name}_total" if is_counter else family.name] = Described(family.type, labels)
    return found


def base_name(series: str) -> str:
    """The metric that a series belongs to."""
    for suffix in SUFFIXES:
        if series.endswith(suffix):
            return series.removesuffix(suffix)
    return series
