"""The `trainingjob_*` metrics: gauges read from the jobs, and counters of the operator about the jobs.

The counts are stored here and not in prometheus_client's own counters: a deleted job is forgotten in one step, and no
`_created` series doubles the number of series.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import AllocatedResources, CheckpointStatus, State, TrainingJobStatus
from holdfast.pods.start_problems import is_ordinary
from holdfast.runtime.informer import Store
from holdfast.runtime.process import Now
from holdfast.runtime.reconciler import EventMessage
from holdfast.times import parse_time
from holdfast.trainingjob.lost_time import LostTime
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.services import service_account
from holdfast.trainingjob.objects.tensorboard import has_tensorboard
from holdfast.trainingjob.waiting_metrics import PER_JOB, waiting_metrics

# Gauges of the TrainingJobs. They are read at each scrape, so that a deleted job leaves no series.

STATES: tuple[str, ...] = get_args(State)
# By the metric name that a training reports.
REPORTED = {
    "loss": "The loss that was reported last.",
    "accuracy": "The accuracy that was reported last.",
}
UTILIZATION = "How busy the job's GPUs are: the mean over the workers that report it."

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_NO_STATUS = TrainingJobStatus()
_NO_RESOURCES = AllocatedResources()


def gauges(
    jobs: Sequence[TrainingJob],
    now: datetime,
    gpu_utilization_percent: Callable[[TrainingJob], float | None],
    *,
    per_job: bool,
) -> Iterator[GaugeMetricFamily]:
    """All gauges; without `per_job` only gauges that make sense as a sum, with an empty job name."""
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
    """Adds all known values: an unknown value is absent, never zero."""
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _labels(job: TrainingJob) -> tuple[str, str]:
    return job.metadata.namespace, job.metadata.name


def _status(job: TrainingJob) -> TrainingJobStatus:
    return job.status or _NO_STATUS


def _state(job: TrainingJob) -> str:
    # A job that was never reconciled has no state yet: it is pending.
    return _status(job).state or "Pending"


def _percent(progress: str | None) -> float | None:
    match = _PERCENT.fullmatch(progress or "")
    return float(match[1]) if match else None


def _seconds(status: TrainingJobStatus, now: datetime) -> float | None:
    if not status.start_time:
        return None
    try:
        end = parse_time(status.completion_time) if status.completion_time else now
        return max(0.0, (end - parse_time(status.start_time)).total_seconds())
    except ValueError:  # RFC 3339 allows more than Python parses, and one job must not hide all other jobs
        return None


# Few buckets, since every job has its own; holdfast_reconcile_duration_seconds has more, for all jobs together.
BOUNDS_S = (0.01, 0.1, 1.0, 10.0)
RESULTS = {"Completed": "succeeded", "Failed": "failed"}


class ReconcileStats:
    """Results, errors and durations of one job's reconciles so far."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.times = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        self.times[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds += seconds


class TrainingJobMetrics:
    """Collects all `trainingjob_*` metrics; without `per_job` no series is about a single job.

    `gpu_utilization_percent` comes from the workers' reports: the status is not written for every change of the value.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        store: Store[TrainingJob],
        *,
        per_job: bool,
        now: Now,
        gpu_utilization_percent: Callable[[TrainingJob], float | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._per_job = per_job
        self._now = now
        self._gpu_utilization_percent = gpu_utilization_percent
        self._has_reconciled = False
        self._stats: dict[Key, ReconcileStats] = {}
        self._created: Counter[str] = Counter()
        self._completed: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()
        self._lost_time = LostTime()
        registry.register(self)

    def reconciled(self, key: Key, result: str, seconds: float, error: BaseException | None = None) -> None:
        if result == "not_leading":
            return  # the process that leads now reconciles the job, and counts that
        self._has_reconciled = True
        if self._store.get(key) is None:
            self.forget(key)
            return
        stats = self._stats_of(key)
        stats.results[result] += 1
        stats.took(seconds)
        if error is not None:
            stats.errors[type(error).__name__] += 1

    def status_written(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """`status` replaced the status in `job`. Each transition is written, and so counted, once."""
        self._lost_time.status_written(job, status, self._now())
        namespace = job.metadata.namespace
        before = job.status.state if job.status is not None else None
        if before is None:
            self._created[namespace] += 1
        if status.state is None or status.state == before:
            return
        if status.state in RESULTS:
            self._completed[namespace, RESULTS[status.state]] += 1
        if status.state == "Failed":
            self._failed[namespace, _failure(status)] += 1

    def forget(self, key: Key) -> None:
        """The job is deleted, and its series with it. Sums over all jobs carry no job's name and stay."""
        self._stats.pop(key, None)
        self._lost_time.forget(key)

    def collect(self) -> Iterator[Metric]:
        # A standby has the same jobs in its store: if the standby exposed them too, every sum would double.
        if not self._has_reconciled:
            return
        jobs, now = self._store.list(), self._now()
        namespaces = {job.metadata.namespace for job in jobs}
        yield from gauges(jobs, now, self._gpu_utilization_percent, per_job=self._per_job)
        yield from waiting_metrics(jobs, now, per_job=self._per_job)
        yield from self._reconciliations()
        yield from self._lifecycle(namespaces)
        yield from self._lost_time.collect(namespaces)

    def _stats_of(self, key: Key) -> ReconcileStats:
        return self._stats.setdefault(key if self._per_job else Key(key.namespace, ""), ReconcileStats())

    def _reconciliations(self) -> Iterator[Metric]:
        total = _counter("reconciliation", "Reconciles by how they ended.", (*PER_JOB, "result"))
        errors = _counter("reconciliation_errors", "Reconciles that failed.", (*PER_JOB, "error_type"))
        duration = HistogramMetricFamily(
            "trainingjob_reconciliation_duration_seconds", "How long one reconcile takes.", labels=PER_JOB
        )
        for key, stats in self._stats.items():
            _fill(total, (((*key, result), count) for result, count in stats.results.items()))
            _fill(errors, (((*key, error), count) for error, count in stats.errors.items()))
            bounds = (*(str(bound) for bound in BOUNDS_S), "+Inf")
            duration.add_metric(key, tuple(zip(bounds, accumulate(stats.times), strict=True)), stats.seconds)
        yield from (total, duration, errors)

    def _lifecycle(self, namespaces: Iterable[str]) -> Iterator[Metric]:
        """A namespace's counters start at zero: `increase` does not see a counter that starts at one."""
        created = _counter("created", "Jobs seen for the first time.", ("namespace",))
        completed = _counter("completed", "Jobs that have ended.", ("namespace", "result"))
        failed = _counter("failed", "Jobs that have failed for good.", ("namespace", "reason"))
        zeros = dict.fromkeys(namespaces, 0)
        _fill(created, (((namespace,), count) for namespace, count in (zeros | self._created).items()))
        none = {(namespace, result): 0 for namespace in namespaces for result in RESULTS.values()}
        _fill(completed, (none | self._completed).items())
        _fill(failed, self._failed.items())
        yield from (created, completed, failed)


def _counter(name: str, meaning: str, labels: Sequence[str]) -> CounterMetricFamily:
    """Exposed as trainingjob_{name}_total."""
    return CounterMetricFamily(f"trainingjob_{name}", meaning, labels=labels)


def _fill(family: CounterMetricFamily, counts: Iterable[tuple[tuple[str, ...], int]]) -> None:
    for labels, count in counts:
        family.add_metric(labels, count)


def _failure(status: TrainingJobStatus) -> str:
    """One word: the reason of the condition Failed."""
    return next((each.reason for each in status.conditions if each.type == "Failed"), "Unknown")


# The Events of a TrainingJob for its user: what was made for it, each restart, and what goes wrong. What goes well is
# in the status, word for word.


def events_for(job: TrainingJob, status: TrainingJobStatus) -> Iterator[EventMessage]:
    """The Events for the transition from the job's present status to `status`."""
    old = job.status or TrainingJobStatus()
    yield from _resumed(old, status)
    if status.restart_count != old.restart_count:
        # A new attempt without a failure was requested: a different number of workers, or a changed spec.
        failed = status.restarts != old.restarts
        yield EventMessage("Restarting", f"attempt {status.restart_count}: {status.message}", warning=failed)
    elif status.state != old.state:
        yield from _transition(job, old, status)
    elif status.message != old.message and _waits_for_something(status):
        yield EventMessage("Waiting", status.message or "", warning=True)


def _waits_for_something(status: TrainingJobStatus) -> bool:
    """Workers that merely have not started yet need no Event; a message that names a cause does."""
    return status.state in ("Pending", "Initializing", "Restarting") and not is_ordinary(status.message or "")


def _resumed(old: TrainingJobStatus, status: TrainingJobStatus) -> Iterator[EventMessage]:
    before, now = old.checkpoint or CheckpointStatus(), status.checkpoint or CheckpointStatus()
    # After an attempt that saved nothing, the next attempt resumes from the same checkpoint.
    is_first_report = status.epochs is not None and (old.epochs is None or old.epochs.attempt != status.epochs.attempt)
    if now.resumed_from and (is_first_report or now.resumed_from != before.resumed_from):
        # The report is of the attempt before this write, which may be the one that ends the attempt.
        yield EventMessage("Resumed", f"attempt {old.restart_count} goes on from {now.resumed_from}")


def _transition(job: TrainingJob, old: TrainingJobStatus, status: TrainingJobStatus) -> Iterator[EventMessage]:
    match status.state:
        case "Pending":
            yield EventMessage("Waiting", status.message or "", warning=True)
        case "Initializing":
            what = f"started {_workers(status)}" if old.start_time else _what_was_made(job, status)
            yield EventMessage("WorkersCreated", what)
        case "Restarting":
            yield EventMessage("Restarting", status.message or "", warning=True)
        case "Failed":
            yield EventMessage("Failed", status.failure_reason or "", warning=True)


def _what_was_made(job: TrainingJob, status: TrainingJobStatus) -> str:
    made = [
        f"Job {names.job_name(job)} with {_workers(status)}",
        f"Services {names.headless_service_name(job)} and {names.master_service_name(job)}",
        f"ConfigMap {names.config_map_name(job)}",
    ]
    if service_account(job) is not None:
        made.append(f"ServiceAccount {names.service_account(job)}")
    if has_tensorboard(job):
        made.append(f"TensorBoard {names.tensorboard(job)}")
    return f"made {', '.join(made)}"


def _workers(status: TrainingJobStatus) -> str:
    count = status.workers.desired if status.workers else 0
    return "1 worker" if count == 1 else f"{count} workers"
