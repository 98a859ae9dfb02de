"""What the TrainingJobs show of themselves, as gauges: read when asked for, so that a deleted job leaves nothing."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import get_args

from prometheus_client.core import GaugeMetricFamily

from holdfast.api.trainingjob import TrainingJob, TrainingJobStatus
from holdfast.api.trainingstatus import AllocatedResources, State
from holdfast.planning.times import parse_time

PER_JOB = ("namespace", "training_job")
STATES: tuple[str, ...] = get_args(State)
# By the name that a training reports them under.
REPORTED = {
    "loss": "The loss that was reported last.",
    "accuracy": "The accuracy that was reported last.",
}
UTILIZATION = "How busy the job's GPUs are: the mean over the workers that report it."

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_NOTHING = TrainingJobStatus()
_NO_RESOURCES = AllocatedResources()


def gauges(
    jobs: Sequence[TrainingJob],
    now: datetime,
    gpu_utilization_percent: Callable[[TrainingJob], float | None],
    *,
    per_job: bool,
) -> Iterator[GaugeMetricFamily]:
    """All gauges; without `per_job` only those that mean something as a sum, with an empty name for the job."""
    yield _total(jobs)
    yield from _allocated(jobs, per_job=per_job)
    if per_job:
        yield from _progress(jobs)
        yield _durations(jobs, now)
        yield from _reported(jobs)
        utilization = ((_labels(job), gpu_utilization_percent(job)) for job in jobs)
        yield _with_samples(_family("gpu_utilization_percent", UTILIZATION, PER_JOB), utilization)


def _total(jobs: Iterable[TrainingJob]) -> GaugeMetricFamily:
    family = _family("total", "TrainingJobs by their state.", ("namespace", "state"))
    counts = Counter((job.metadata.namespace, _state(job)) for job in jobs)
    for namespace in sorted({namespace for namespace, _ in counts}):
        for state in STATES:
            family.add_metric((namespace, state), counts[namespace, state])
    return family


def _allocated(jobs: Iterable[TrainingJob], *, per_job: bool) -> Iterator[GaugeMetricFamily]:
    gpus: Counter[tuple[str, str]] = Counter()
    workers: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        labels = (job.metadata.namespace, job.metadata.name if per_job else "")
        held = _status(job).resources or _NO_RESOURCES
        gpus[labels] += held.gpus
        workers[labels] += held.workers
    yield _with_samples(_family("allocated_gpus", "GPUs that the job holds.", PER_JOB), gpus.items())
    yield _with_samples(_family("allocated_workers", "Workers that the job holds.", PER_JOB), workers.items())


def _progress(jobs: Sequence[TrainingJob]) -> Iterator[GaugeMetricFamily]:
    progress = ((_labels(job), _percent(_status(job).progress)) for job in jobs)
    yield _with_samples(_family("progress_percent", "How far the training is.", PER_JOB), progress)
    epochs = ((_labels(job), _status(job).current_epoch) for job in jobs)
    yield _with_samples(_family("current_epoch", "The epoch that is being trained.", PER_JOB), epochs)


def _durations(jobs: Iterable[TrainingJob], now: datetime) -> GaugeMetricFamily:
    family = _family("duration_seconds", "From the job's start to its end, or until now.", (*PER_JOB, "state"))
    seconds = (((*_labels(job), _state(job)), _seconds(_status(job), now)) for job in jobs)
    return _with_samples(family, seconds)


def _reported(jobs: Sequence[TrainingJob]) -> Iterator[GaugeMetricFamily]:
    for name, meaning in REPORTED.items():
        values = ((_labels(job), _status(job).metrics.get(name)) for job in jobs)
        yield _with_samples(_family(name, meaning, PER_JOB), values)


def _family(name: str, meaning: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trainingjob_{name}", meaning, labels=labels)


def _with_samples(
    family: GaugeMetricFamily, values: Iterable[tuple[tuple[str, ...], float | None]]
) -> GaugeMetricFamily:
    """With all values that are known: what is not known is absent, never zero."""
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _labels(job: TrainingJob) -> tuple[str, str]:
    return job.metadata.namespace, job.metadata.name


def _status(job: TrainingJob) -> TrainingJobStatus:
    return job.status or _NOTHING


def _state(job: TrainingJob) -> str:
    # One that nobody has looked at yet waits to be.
    return _status(job).state or "Pending"


def _percent(progress: str | None) -> float | None:
    written = _PERCENT.fullmatch(progress or "")
    return float(written[1]) if written else None


def _seconds(status: TrainingJobStatus, now: datetime) -> float | None:
    if not status.start_time:
        return None
    try:
        end = parse_time(status.completion_time) if status.completion_time else now
        return max(0.0, (end - parse_time(status.start_time)).total_seconds())
    except ValueError:  # RFC 3339 allows more than Python reads, and one job must not hide all the others
        return None
