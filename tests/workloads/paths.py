"""Where the fields of the children lie, as `changed` writes it."""

from typing import Any

from tests.workloads.family import GONE

JSON = dict[str, Any]

JOB = "Job bert-training spec"
TEMPLATE = f"{JOB}.template"
POD = f"{TEMPLATE}.spec"
TRAINER = f"{POD}.containers[trainer]"


def variable(name: str) -> str:
    return f"{TRAINER}.env[{name}].value"


def variables(**values: str) -> JSON:
    """Added variables, each with its name."""
    return {f"{TRAINER}.env[{name}].name": name for name in values} | {variable(n): v for n, v in values.items()}


def removed(*paths: str) -> JSON:
    return dict.fromkeys(paths, GONE)


def no_variables(*names: str) -> JSON:
    return removed(*(f"{TRAINER}.env[{name}].{part}" for name in names for part in ("name", "value")))
