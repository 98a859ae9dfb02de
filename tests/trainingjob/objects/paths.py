"""Where the fields of the children lie, as `changed` writes it."""

from typing import Any

from tests.trainingjob.objects.family import GONE

JSON = dict[str, Any]

JOB = "Job bert-training spec"
TEMPLATE = f"{JOB}.template"
POD = f"{TEMPLATE}.spec"
TRAINER = f"{POD}.containers[trainer]"
SIDECAR = f"{POD}.initContainers[holdfast-sidecar]"


def variable(name: str, at: str = TRAINER) -> str:
    return f"{at}.env[{name}].value"


def variables(at: str = TRAINER, /, **values: str) -> JSON:
    """Added variables, each with its name."""
    return {f"{at}.env[{name}].name": name for name in values} | {variable(n, at): v for n, v in values.items()}


def removed(*paths: str) -> JSON:
    return dict.fromkeys(paths, GONE)


def no_variables(*names: str, at: str = TRAINER) -> JSON:
    return removed(*(f"{at}.env[{name}].{part}" for name in names for part in ("name", "value")))


def secret(at: str, variable_: str, name: str, key: str) -> JSON:
    """An added variable out of a Secret that need not be there."""
    source = {"name": name, "key": key, "optional": True}
    return {
        f"{at}.env[{variable_}].name": variable_,
        **{f"{at}.env[{variable_}].valueFrom.secretKeyRef.{part}": value for part, value in source.items()},
    }
