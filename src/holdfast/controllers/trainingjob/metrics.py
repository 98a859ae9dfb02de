"""The `trainingjob_*` metrics: what the jobs show of themselves, and what the operator counts about them.

The counts are kept here and not in prometheus_client's own counters: forgetting a job is one step, and no `_created`
series doubles their number.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob, TrainingJobStatus
from holdfast.cluster.errors import AlreadyExists, Conflict, NotLeading
from holdfast.controllers.trainingjob.gauges import PER_JOB, gauges
from holdfast.runtime.cache import Store
from holdfast.runtime.clocks import Now
from holdfast.runtime.controller import Reconciler
from holdfast.runtime.result import RequeueAfter, Result, TerminalError

# Few, since every job has its own; holdfast_reconcile_duration_seconds has more, for all jobs together.
BOUNDS_S = (0.01, 0.1, 1.0, 10.0)
RESULTS = {"Completed": "succeeded", "Failed": "failed"}


class ReconcileStats:
    """What reconciling one job has cost so far."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.times = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        self.times[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds += seconds


class TrainingJobMetrics:
    """Collects all fifteen; without `per_job` no series is about a single job.

    `gpu_utilization_percent` is known from the workers' reports: a status is not written for every change of it.
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
        self._works = False
        self._work: dict[Key, ReconcileStats] = {}
        self._created: Counter[str] = Counter()
        self._completed: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()
        registry.register(self)

    def reconciled(self, key: Key, result: str, seconds: float) -> None:
        self._works = True
        work = self._work_on(key)
        work.results[result] += 1
        work.took(seconds)

    def failed_to_reconcile(self, key: Key, error: BaseException) -> None:
        self._work_on(key).errors[type(error).__name__] += 1

    def status_written(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """`status` was written over the one in `job`: each step is written, and so counted, once."""
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
        """The job is gone, and its series with it; sums over all jobs are under no job's name and stay."""
        self._work.pop(key, None)

    def collect(self) -> Iterator[Metric]:
        # A standby has the same jobs in its store: if it showed them too, every sum would be double.
        if not self._works:
            return
        jobs = self._store.list()
        yield from gauges(jobs, self._now(), self._gpu_utilization_percent, per_job=self._per_job)
        yield from self._reconciliations()
        yield from self._lifecycle({job.metadata.namespace for job in jobs})

    def _work_on(self, key: Key) -> ReconcileStats:
        return self._work.setdefault(key if self._per_job else Key(key.namespace, ""), ReconcileStats())

    def _reconciliations(self) -> Iterator[Metric]:
        total = _counter("reconciliation", "Reconciles by how they ended.", (*PER_JOB, "result"))
        errors = _counter("reconciliation_errors", "Reconciles that failed.", (*PER_JOB, "error_type"))
        duration = HistogramMetricFamily(
            "trainingjob_reconciliation_duration_seconds", "How long one reconcile takes.", labels=PER_JOB
        )
        for key, work in self._work.items():
            _fill(total, (((*key, result), count) for result, count in work.results.items()))
            _fill(errors, (((*key, error), count) for error, count in work.errors.items()))
            bounds = (*(str(bound) for bound in BOUNDS_S), "+Inf")
            duration.add_metric(key, tuple(zip(bounds, accumulate(work.times), strict=True)), work.seconds)
        yield from (total, duration, errors)

    def _lifecycle(self, namespaces: Iterable[str]) -> Iterator[Metric]:
        """A namespace's counters begin at zero: `increase` does not see a counter that begins at one."""
        created = _counter("created", "Jobs seen for the first time.", ("namespace",))
        completed = _counter("completed", "Jobs that have ended.", ("namespace", "result"))
        failed = _counter("failed", "Jobs that have failed for good.", ("namespace", "reason"))
        zeros = dict.fromkeys(namespaces, 0)
        _fill(created, (((namespace,), count) for namespace, count in (zeros | self._created).items()))
        none = {(namespace, result): 0 for namespace in namespaces for result in RESULTS.values()}
        _fill(completed, (none | self._completed).items())
        _fill(failed, self._failed.items())
        yield from (created, completed, failed)


class InstrumentedReconciler:
    """A reconciler whose reconciles are counted, and whose jobs are forgotten when they are gone."""

    def __init__(self, reconciler: Reconciler, metrics: TrainingJobMetrics, store: Store[TrainingJob]) -> None:
        self._reconciler = reconciler
        self._metrics = metrics
        self._store = store

    async def reconcile(self, key: Key) -> Result:
        began = asyncio.get_running_loop().time()
        try:
            result = await self._reconciler.reconcile(key)
        except NotLeading:
            raise
        except (Conflict, AlreadyExists):
            self._count(key, "conflict", began)
            raise
        except TerminalError:
            self._count(key, "terminal", began)
            raise
        except (Exception, asyncio.CancelledError) as error:  # cancelled: it took longer than the operator allows
            self._count(key, "error", began, error)
            raise
        self._count(key, "requeue" if isinstance(result, RequeueAfter) else "done", began)
        return result

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        await self._reconciler.report_terminal_error(key, error)

    def _count(self, key: Key, result: str, began: float, error: BaseException | None = None) -> None:
        if self._store.get(key) is None:
            self._metrics.forget(key)
            return
        self._metrics.reconciled(key, result, asyncio.get_running_loop().time() - began)
        if error is not None:
            self._metrics.failed_to_reconcile(key, error)


def _counter(name: str, meaning: str, labels: Sequence[str]) -> CounterMetricFamily:
    """Shown as trainingjob_{name}_total."""
    return CounterMetricFamily(f"trainingjob_{name}", meaning, labels=labels)


def _fill(family: CounterMetricFamily, counts: Iterable[tuple[tuple[str, ...], int]]) -> None:
    for labels, count in counts:
        family.add_metric(labels, count)


def _failure(status: TrainingJobStatus) -> str:
    """One word: the reason of the condition Failed."""
    return next((each.reason for each in status.conditions if each.type == "Failed"), "Unknown")
