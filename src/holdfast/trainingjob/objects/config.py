"""The ConfigMaps of a job: its configuration for the workers, as JSON and as YAML, and the saved logs of workers."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from holdfast.api.reports import FILE as REPORTS_FILE
from holdfast.api.trainingjob import TrainingJob
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.environment import CONFIG_FILE
from holdfast.trainingjob.objects.resources import backend, master_port
from holdfast.trainingjob.objects.sidecar import has_sidecar

YAML_FILE = "config.yaml"
_PLAIN_TEXT = re.compile(r"[A-Za-z]{2}[ -~]*")


def config_map(job: TrainingJob, reports: str | None = None) -> dict[str, Any]:
    """`reports` is the report endpoint for the sidecars, as `holdfast.api.reports` encodes it."""
    # An API server returns maps in another order than they were written in.
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
    """Quotes every string that some YAML parser could read as another type: 1e-4, 0o7, y."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN_TEXT.fullmatch(text) else '"')


_Dumper.add_representer(str, _represent_text)


# The ConfigMap that stores the end of a worker's log after its pod is deleted.

# The worker's index; every ConfigMap with this label is a saved log.
WORKER_LABEL = "holdfast.dev/log-of-worker"
LOG = "log"
# The logs of earlier pods of the same attempt, which were stopped when the job was suspended.
EARLIER = "earlier"
POD = "pod"
FINISHED_AT = "finishedAt"
MAX_LOG_BYTES = 64 * 1024


def log_name(job: TrainingJob, number: int, index: int) -> str:
    return f"{job.metadata.name}-log-{number}-{index}"


def worker_log_config_map(
    job: TrainingJob,
    index: int,
    text: bytes,
    facts: Mapping[str, str],
    *,
    number: int | None = None,
    stored: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The log of a worker of attempt `number`, by default the current attempt.

    `facts` are how and where the worker ended, as far as known; `stored` is the present data of the ConfigMap.
    """
    number = names.attempt(job) if number is None else number
    # Without the label that the operator's informers select: thousands of logs would fill its caches for nothing.
    labels = {names.JOB_LABEL: job.metadata.name, names.ATTEMPT_LABEL: str(number), WORKER_LABEL: str(index)}
    known = {name: value for name, value in facts.items() if value}
    if earlier_logs := _earlier_logs(stored or {}, facts.get(POD, "")):
        known[EARLIER] = earlier_logs
    return {
        "metadata": names.metadata(job, log_name(job, number, index), labelled=labels),
        "data": {**known, LOG: _tail(text).decode(errors="replace")},
    }


def is_newer(stored: Mapping[str, str], facts: Mapping[str, str]) -> bool:
    """Whether a log adds to the stored data: it is from another pod, or the same pod has ended since."""
    return stored.get(POD) != facts.get(POD) or (FINISHED_AT not in stored and bool(facts.get(FINISHED_AT)))


def _earlier_logs(stored: Mapping[str, str], pod: str) -> str:
    earlier = stored.get(EARLIER, "")
    if stored.get(POD) != pod:
        earlier += stored.get(LOG, "")
    return _tail(earlier.encode()).decode(errors="replace")


def _tail(text: bytes) -> bytes:
    return text[-MAX_LOG_BYTES:]


def worker_log_selector(name: str) -> str:
    """Selects the saved logs of all jobs of this name; the owner reference tells jobs of the same name apart."""
    return f"{names.JOB_LABEL}={name},{WORKER_LABEL}"
