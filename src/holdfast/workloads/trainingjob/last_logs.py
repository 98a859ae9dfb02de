"""The ConfigMap that keeps the end of a worker's log when its pod is gone."""

from collections.abc import Mapping
from typing import Any

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob import names

# Whose log it is, by the worker's number; what carries this label is a kept log.
WORKER_LABEL = "holdfast.dev/log-of-worker"
LOG = "log"
KEPT_BYTES = 64 * 1024


def last_log(job: TrainingJob, index: int, text: bytes, facts: Mapping[str, str]) -> dict[str, Any]:
    """Of a worker of the current attempt; `facts` say how it ended and where, as far as that is known."""
    # Without the label that the operator's caches go by: thousands of logs would fill its memory for nothing.
    labels = {
        names.JOB_LABEL: job.metadata.name,
        names.ATTEMPT_LABEL: str(names.attempt(job)),
        WORKER_LABEL: str(index),
    }
    known = {name: value for name, value in facts.items() if value}
    return {
        "metadata": names.metadata(job, f"{job.metadata.name}-log-{names.attempt(job)}-{index}", labelled=labels),
        "data": {**known, LOG: text[-KEPT_BYTES:].decode(errors="replace")},
    }


def kept_logs(name: str) -> str:
    """Selects the kept logs of the jobs of that name; whose one is of several, its owner tells."""
    return f"{names.JOB_LABEL}={name},{WORKER_LABEL}"
