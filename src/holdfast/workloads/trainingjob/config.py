"""The ConfigMap that tells the workers what to train, as a JSON file and as the same in YAML."""

import re
from typing import Any

import msgspec
import yaml

from holdfast.api.trainingjob import TrainingJob
from holdfast.reports.endpoint import FILE as REPORTS_FILE
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.environment import CONFIG_FILE
from holdfast.workloads.trainingjob.networking import backend, master_port
from holdfast.workloads.trainingjob.sidecar import has_sidecar

YAML_FILE = "config.yaml"
_WORDS = re.compile(r"[A-Za-z]{2}[ -~]*")


def config_map(job: TrainingJob, reports: str | None = None) -> dict[str, Any]:
    """`reports` tells the sidecars where to report, as `holdfast.reports.endpoint` writes it."""
    # Maps come back from an API server in another order than they were written in.
    hyperparameters = msgspec.to_builtins(job.spec.hyperparameters, order="deterministic")
    task = {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "model": job.spec.model,
        "dataset": job.spec.dataset,
        "framework": str(job.spec.framework),
        "hyperparameters": hyperparameters or {},
        "networking": {"backend": backend(job), "masterPort": master_port(job)},
    }
    data = {
        CONFIG_FILE: msgspec.json.format(msgspec.json.encode(task)).decode() + "\n",
        YAML_FILE: yaml.dump(task, Dumper=_Dumper, sort_keys=False, allow_unicode=True),
    }
    if reports is not None and has_sidecar(job):
        data[REPORTS_FILE] = reports
    return {"metadata": names.metadata(job, names.config_map_name(job)), "data": data}


class _Dumper(yaml.SafeDumper):
    """Quotes every text that some reader of YAML could take for something else: 1e-4, 0o7, y."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _WORDS.fullmatch(text) else '"')


_Dumper.add_representer(str, _text)
