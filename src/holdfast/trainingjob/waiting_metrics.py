"""Gauges of what jobs wait for, of their checkpoints, and of failures so far: read from the jobs at each scrape."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.api.meta import Condition
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import RestartCounts, TrainingJobStatus
from holdfast.decisions import reason_of
from holdfast.runtime.ages import latest, seconds_since, transition, unsaved_seconds
from holdfast.times import parse_duration_s, parse_optional_time

PER_JOB = ("namespace", "training_job")
WAITING_STATES = ("Pending", "Initializing", "Restarting")
FINISHED_STATES = ("Completed", "Failed")
# The reason of a job that was never reconciled.
NOT_SEEN = "NotSeenYet"

_NO_STATUS = TrainingJobStatus()
_NO_RESTARTS = RestartCounts()


def waiting_metrics(jobs: Sequence[TrainingJob], now: datetime, *, per_job: bool) -> Iterator[Metric]:
    """Without `per_job` the longest wait of each namespace and reason, and nothing that is about one job."""
    yield _reasons(jobs)
    yield _waiting(jobs, now, per_job=per_job)
    if per_job:
        yield from _checkpoints([job for job in jobs if _state(job) not in FINISHED_STATES], now)
        yield _failed_attempts(jobs)


def waiting_seconds(job: TrainingJob, now: datetime) -> float | None:
    """Since when its workers do not all run; time before the end of a suspension does not count. None if they do."""
    if _state(job) not in WAITING_STATES:
        return None
    conditions = _conditions(job)
    since = latest(transition(conditions, "Running", "False"), transition(conditions, "Suspended", "False"))
    return seconds_since(since or parse_optional_time(job.metadata.creation_timestamp), now)


def failed_attempts(restarts: RestartCounts | None) -> dict[str, int]:
    """By failure class."""
    counts = restarts or _NO_RESTARTS
    return {
        "preemption": counts.preemption,
        "infrastructure": counts.infrastructure,
        "outOfMemory": counts.out_of_memory,
        "hang": counts.hang,
        "application": counts.application,
    }


def _reasons(jobs: Iterable[TrainingJob]) -> GaugeMetricFamily:
    labels = ("namespace", "state", "reason")
    family = GaugeMetricFamily("trainingjob_jobs", "TrainingJobs by their state and its reason.", labels=labels)
    for key, count in Counter((job.metadata.namespace, _state(job), _reason(job)) for job in jobs).items():
        family.add_metric(key, count)
    return family


def _waiting(jobs: Iterable[TrainingJob], now: datetime, *, per_job: bool) -> GaugeMetricFamily:
    meaning = "How long the job has waited for all of its workers to run."
    family = GaugeMetricFamily("trainingjob_waiting_seconds", meaning, labels=(*PER_JOB, "reason"))
    longest: dict[tuple[str, str, str], float] = {}
    for job in jobs:
        seconds = waiting_seconds(job, now)
        if seconds is not None:
            key = (job.metadata.namespace, job.metadata.name if per_job else "", _reason(job))
            longest[key] = max(seconds, longest.get(key, 0.0))
    for key, seconds in longest.items():
        family.add_metric(key, seconds)
    return family


def _checkpoints(jobs: Sequence[TrainingJob], now: datetime) -> Iterator[GaugeMetricFamily]:
    age = _gauge("checkpoint_age_seconds", "Since the newest valid checkpoint was complete.")
    unsaved = _gauge("unsaved_seconds", "Training that a loss would cost now: since the last checkpoint.")
    interval = _gauge("checkpoint_interval_seconds", "Time after which the job is to save, by interval or epochs.")
    for job in jobs:
        last = job.status.checkpoint.last_time if job.status is not None and job.status.checkpoint is not None else None
        _add(age, job, seconds_since(parse_optional_time(last), now))
        _add(unsaved, job, unsaved_seconds(_conditions(job), last, now))
        _add(interval, job, _interval_s(job))
    yield from (age, unsaved, interval)


def _interval_s(job: TrainingJob) -> float | None:
    """The interval, or so many epochs as are to be saved after: whichever is shorter, as far as known."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or not checkpoint.enabled:
        return None
    found = [parse_duration_s(checkpoint.interval)] if checkpoint.interval else []
    if job.status is not None and job.status.epochs is not None and job.status.epochs.seconds_each:
        found.append(checkpoint.frequency * job.status.epochs.seconds_each)
    return min(found, default=None)


def _failed_attempts(jobs: Iterable[TrainingJob]) -> CounterMetricFamily:
    """Of the status, so that another leader goes on where this one ended."""
    family = CounterMetricFamily(
        "trainingjob_failed_attempts", "Attempts that failed and were followed by another.", labels=PER_JOB
    )
    for job in jobs:
        restarts = job.status.restarts if job.status is not None else None
        family.add_metric(_labels(job), sum(failed_attempts(restarts).values()))
    return family


def _gauge(name: str, meaning: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trainingjob_{name}", meaning, labels=PER_JOB)


def _add(family: GaugeMetricFamily, job: TrainingJob, value: float | None) -> None:
    if value is not None:
        family.add_metric(_labels(job), value)


def _labels(job: TrainingJob) -> tuple[str, str]:
    return job.metadata.namespace, job.metadata.name


def _conditions(job: TrainingJob) -> tuple[Condition, ...]:
    return job.status.conditions if job.status is not None else ()


def _state(job: TrainingJob) -> str:
    return (job.status or _NO_STATUS).state or "Pending"


def _reason(job: TrainingJob) -> str:
    return reason_of(job.status or _NO_STATUS) or NOT_SEEN
