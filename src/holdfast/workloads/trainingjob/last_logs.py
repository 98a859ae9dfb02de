"""The ConfigMap that keeps the end of a worker's log when its pod is gone."""

from collections.abc import Mapping
from typing import Any

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob import names

# Whose log it is, by the worker's number; what carries this label is a kept log.
WORKER_LABEL = "holdfast.dev/log-of-worker"
LOG = "log"
# What earlier pods of the same attempt wrote: those that were stopped when the job was suspended.
EARLIER = "earlier"
POD = "pod"
FINISHED_AT = "finishedAt"
KEPT_BYTES = 64 * 1024


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
    """Of a worker of attempt `number`, by default the current one.

    `facts` say how it ended and where, as far as that is known; `stored` is what the ConfigMap holds so far.
    """
    number = names.attempt(job) if number is None else number
    # Without the label that the operator's caches go by: thousands of logs would fill its memory for nothing.
    labels = {names.JOB_LABEL: job.metadata.name, names.ATTEMPT_LABEL: str(number), WORKER_LABEL: str(index)}
    known = {name: value for name, value in facts.items() if value}
    if earlier := _earlier(stored or {}, facts.get(POD, "")):
        known[EARLIER] = earlier
    return {
        "metadata": names.metadata(job, log_name(job, number, index), labelled=labels),
        "data": {**known, LOG: _end(text).decode(errors="replace")},
    }


def is_newer(stored: Mapping[str, str], facts: Mapping[str, str]) -> bool:
    """Whether a log adds to what is stored: it is another pod's, or the same pod has ended since."""
    return stored.get(POD) != facts.get(POD) or (FINISHED_AT not in stored and bool(facts.get(FINISHED_AT)))


def _earlier(stored: Mapping[str, str], pod: str) -> str:
    earlier = stored.get(EARLIER, "")
    if stored.get(POD) != pod:
        earlier += stored.get(LOG, "")
    return _end(earlier.encode()).decode(errors="replace")


def _end(text: bytes) -> bytes:
    return text[-KEPT_BYTES:]


def worker_log_selector(name: str) -> str:
    """Selects the kept logs of the jobs of that name; whose one is of several, its owner tells."""
    return f"{names.JOB_LABEL}={name},{WORKER_LABEL}"
