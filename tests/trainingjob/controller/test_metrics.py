"""The metrics of TrainingJobs: jobs and what happened to them → what Prometheus reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cluster.errors import AlreadyExists, Conflict, NotLeading, ServerError
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.informer import Store
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.runtime.reconciler import InstrumentedReconciler
from holdfast.trainingjob.metrics import TrainingJobMetrics
from tests.control_plane.waiting import eventually
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjobs import training_job

BERT = Key("ml", "bert")
NOW = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
OF_A_JOB = {"namespace", "training_job"}
# The first fifteen are those that the README of the operator prints.
LABELS = {
    "trainingjob_reconciliation_total": OF_A_JOB | {"result"},
    "trainingjob_reconciliation_duration_seconds": OF_A_JOB,
    "trainingjob_reconciliation_errors_total": OF_A_JOB | {"error_type"},
    "trainingjob_total": {"namespace", "state"},
    "trainingjob_progress_percent": OF_A_JOB,
    "trainingjob_current_epoch": OF_A_JOB,
    "trainingjob_duration_seconds": OF_A_JOB | {"state"},
    "trainingjob_allocated_gpus": OF_A_JOB,
    "trainingjob_allocated_workers": OF_A_JOB,
    "trainingjob_loss": OF_A_JOB,
    "trainingjob_accuracy": OF_A_JOB,
    "trainingjob_gpu_utilization_percent": OF_A_JOB,
    "trainingjob_created_total": {"namespace"},
    "trainingjob_completed_total": {"namespace", "result"},
    "trainingjob_failed_total": {"namespace", "reason"},
    "trainingjob_jobs": {"namespace", "state", "reason"},
    "trainingjob_waiting_seconds": OF_A_JOB | {"reason"},
    "trainingjob_checkpoint_age_seconds": OF_A_JOB,
    "trainingjob_checkpoint_interval_seconds": OF_A_JOB,
    "trainingjob_unsaved_seconds": OF_A_JOB,
    "trainingjob_failed_attempts_total": OF_A_JOB,
    "trainingjob_restarts_total": {"namespace", "class"},
    "trainingjob_lost_gpu_seconds_total": {"namespace", "class"},
}
FULL: dict[str, Any] = {
    "state": "Running",
    "progress": "45%",
    "currentEpoch": 9,
    "metrics": {"loss": 0.25, "accuracy": 0.9, "gpu_utilization_percent": 87.5, "perplexity": 3.0},
    "resources": {"gpus": 4, "workers": 2},
    "startTime": "2026-01-01T00:30:00Z",
}


def named(name: str, namespace: str = "ml", status: dict[str, Any] | None = None) -> TrainingJob:
    job = training_job(status=status)
    return replace(job, metadata=replace(job.metadata, name=name, namespace=namespace))


class Scrape:
    """A store and its metrics, and what a scrape of them gives."""

    def __init__(self, *jobs: TrainingJob, per_job: bool = True, works: bool = True) -> None:
        self.registry = CollectorRegistry()
        self.store: Store[TrainingJob] = Store()
        for job in jobs:
            self.store.put(job)
        self.utilization: dict[Key, float] = {}
        self.metrics = TrainingJobMetrics(
            self.registry,
            self.store,
            per_job=per_job,
            now=lambda: NOW,
            gpu_utilization_percent=lambda job: self.utilization.get(job.metadata.key),
        )
        if works:
            self.metrics.reconciled(BERT, "done", 0.05)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"trainingjob_{name}", labels)

    def of_bert(self, name: str, **labels: str) -> float | None:
        return self.value(name, namespace="ml", training_job="bert", **labels)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """By label values, in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"trainingjob_{name}"
        }


def status(**fields: Any) -> TrainingJobStatus:
    return msgspec.convert(fields, TrainingJobStatus)


def failed(reason: str) -> TrainingJobStatus:
    since = {"message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    created = {"type": "Created", "status": "True", "reason": "ChildrenMade", **since}
    return status(state="Failed", conditions=[created, {**created, "type": "Failed", "reason": reason}])


def test_the_text_has_all_by_name_and_labels_and_nothing_else() -> None:
    since = {"type": "Running", "reason": "AsTold", "message": "", "lastTransitionTime": FULL["startTime"]}
    saved = {**FULL, "checkpoint": {"lastTime": FULL["startTime"]}, "conditions": [{**since, "status": "True"}]}
    job = training_job({"checkpoint": {"interval": "30m"}}, status=saved)
    waiting = named("waiting", status={"state": "Pending", "conditions": [{**since, "status": "False"}]})
    scrape = Scrape(job, waiting)
    scrape.utilization[BERT] = 55.0
    scrape.metrics.reconciled(BERT, "error", 0.05, ValueError())
    scrape.metrics.status_written(training_job(), failed("BackoffLimitExceeded"))
    labels: dict[str, set[str]] = {}
    for line in scrape.text().splitlines():
        if line.startswith("# TYPE"):
            labels[line.split()[2]] = set()
    for family in text_string_to_metric_families(scrape.text()):
        for sample in family.samples:
            name = next(name for name in sorted(LABELS, key=len, reverse=True) if sample.name.startswith(name))
            labels[name] |= sample.labels.keys() - {"le"}
    assert labels == LABELS


def test_every_metric_is_explained() -> None:
    assert all(family.documentation for family in Scrape(training_job(status=FULL)).registry.collect())


def test_a_job_shows_what_its_status_says() -> None:
    scrape = Scrape(training_job(status=FULL))
    assert scrape.of_bert("progress_percent") == 45
    assert scrape.of_bert("current_epoch") == 9
    assert scrape.of_bert("duration_seconds", state="Running") == 5400
    assert scrape.of_bert("allocated_gpus") == 4
    assert scrape.of_bert("allocated_workers") == 2
    assert scrape.of_bert("loss") == 0.25
    assert scrape.of_bert("accuracy") == 0.9


def test_the_gpu_utilization_is_the_newest_and_not_what_a_status_has_kept() -> None:
    scrape = Scrape(training_job(status=FULL))
    assert scrape.series("gpu_utilization_percent") == {}
    scrape.utilization[BERT] = 55.0
    assert scrape.of_bert("gpu_utilization_percent") == 55.0


@pytest.mark.parametrize("before", [None, {"state": "Pending"}])
def test_what_is_unknown_is_absent_and_not_zero(before: dict[str, Any] | None) -> None:
    scrape = Scrape(training_job(status=before))
    for name in ("progress_percent", "current_epoch", "loss", "accuracy", "gpu_utilization_percent"):
        assert scrape.series(name) == {}
    assert scrape.series("duration_seconds") == {}
    assert scrape.of_bert("allocated_gpus") == 0


def test_a_reported_zero_is_a_zero() -> None:
    scrape = Scrape(training_job(status={"state": "Running", "progress": "0%", "metrics": {"loss": 0.0}}))
    assert scrape.of_bert("progress_percent") == 0
    assert scrape.of_bert("loss") == 0


@pytest.mark.parametrize(
    ("progress", "percent"), [("12.5%", 12.5), ("100%", 100), ("45", None), ("nan%", None), ("-1%", None), ("", None)]
)
def test_progress_is_read_as_it_is_written_or_left_out(progress: str, percent: float | None) -> None:
    scrape = Scrape(training_job(status={"state": "Running", "progress": progress}))
    assert scrape.of_bert("progress_percent") == percent


@given(st.text(max_size=16))
def test_no_progress_breaks_a_scrape(progress: str) -> None:
    value = Scrape(training_job(status={"progress": progress})).of_bert("progress_percent")
    assert value is None or value >= 0


def test_a_jobs_duration_ends_with_it() -> None:
    ended = {"state": "Completed", "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:10:00Z"}
    assert Scrape(training_job(status=ended)).series("duration_seconds") == {("ml", "Completed", "bert"): 600}


def test_a_clock_that_is_behind_makes_no_negative_duration() -> None:
    ahead = {"state": "Running", "startTime": "2026-01-01T03:00:00Z"}
    assert Scrape(training_job(status=ahead)).of_bert("duration_seconds", state="Running") == 0


def test_a_time_that_cannot_be_read_hides_one_series_and_not_all() -> None:
    leap = {**FULL, "startTime": "2016-12-31T23:59:60Z"}
    scrape = Scrape(training_job(status=leap))
    assert scrape.series("duration_seconds") == {}
    assert scrape.of_bert("loss") == 0.25


def test_jobs_are_counted_by_namespace_and_state_with_zeros_for_the_other_states() -> None:
    jobs = [named("a", "ml"), named("b", "ml", {"state": "Running"}), named("c", "ml", {"state": "Running"})]
    total = Scrape(*jobs, named("d", "cv", {"state": "Failed"})).series("total")
    assert {labels: count for labels, count in total.items() if count} == {
        ("ml", "Pending"): 1,
        ("ml", "Running"): 2,
        ("cv", "Failed"): 1,
    }
    assert len(total) == 2 * 7


def test_a_deleted_jobs_series_are_gone_with_the_next_scrape() -> None:
    scrape = Scrape(training_job(status=FULL), named("other", status=FULL))
    scrape.metrics.reconciled(BERT, "error", 0.05, ValueError())
    scrape.metrics.reconciled(Key("ml", "other"), "done", 0.1)
    assert 'training_job="bert"' in scrape.text()
    scrape.store.remove(BERT)
    scrape.metrics.forget(BERT)
    assert 'training_job="bert"' not in scrape.text()
    assert 'training_job="other"' in scrape.text()


def test_a_job_that_was_never_seen_can_be_forgotten() -> None:
    scrape = Scrape(training_job(status=FULL))
    before = scrape.text()
    scrape.metrics.forget(Key("ml", "nobody"))
    assert scrape.text() == before


def test_a_changed_state_leaves_no_series_of_the_old_one() -> None:
    scrape = Scrape(training_job(status=FULL))
    scrape.store.put(training_job(status={**FULL, "state": "Restarting"}))
    assert list(scrape.series("duration_seconds")) == [("ml", "Restarting", "bert")]


def test_reconciles_are_counted_by_result_and_errors_by_type() -> None:
    scrape = Scrape(training_job())
    for result in ("done", "requeue"):
        scrape.metrics.reconciled(BERT, result, 0.05)
    scrape.metrics.reconciled(BERT, "error", 0.05, KeyError("x"))
    assert scrape.series("reconciliation_total") == {
        ("ml", "done", "bert"): 2,
        ("ml", "requeue", "bert"): 1,
        ("ml", "error", "bert"): 1,
    }
    assert scrape.series("reconciliation_errors_total") == {("KeyError", "ml", "bert"): 1}


@given(st.lists(st.floats(0, 100), max_size=20))
def test_the_durations_of_reconciles_add_up(seconds: list[float]) -> None:
    scrape = Scrape(training_job(), works=False)
    for each in (*seconds, 0.1):
        scrape.metrics.reconciled(BERT, "done", each)
    buckets = scrape.series("reconciliation_duration_seconds_bucket")
    for bound in ("0.01", "0.1", "1.0", "10.0", "+Inf"):
        assert buckets[bound, "ml", "bert"] == sum(each <= float(bound) for each in (*seconds, 0.1))
    assert scrape.of_bert("reconciliation_duration_seconds_count") == len(seconds) + 1
    assert scrape.of_bert("reconciliation_duration_seconds_sum") == pytest.approx(sum(seconds) + 0.1)


def test_a_job_is_created_with_its_first_status() -> None:
    scrape = Scrape()
    scrape.metrics.status_written(training_job(), status(state="Pending"))
    scrape.metrics.status_written(training_job(status={"state": "Pending"}), status(state="Initializing"))
    assert scrape.series("created_total") == {("ml",): 1}


@pytest.mark.parametrize(
    ("after", "completed", "reasons"),
    [
        (status(state="Completed"), {("ml", "succeeded"): 1}, {}),
        (failed("DeadlineExceeded"), {("ml", "failed"): 1}, {("ml", "DeadlineExceeded"): 1}),
        (status(state="Failed"), {("ml", "failed"): 1}, {("ml", "Unknown"): 1}),
        (status(state="Restarting"), {}, {}),
        (status(state="Running", message="still"), {}, {}),
    ],
)
def test_an_end_is_counted_with_its_result_and_its_reason(
    after: TrainingJobStatus, completed: dict[tuple[str, ...], int], reasons: dict[tuple[str, ...], int]
) -> None:
    scrape = Scrape()
    scrape.metrics.status_written(training_job(status={"state": "Running"}), after)
    assert scrape.series("completed_total") == completed
    assert scrape.series("failed_total") == reasons


def test_a_status_that_is_written_again_counts_nothing_again() -> None:
    scrape = Scrape()
    ended = training_job(status={"state": "Completed"})
    scrape.metrics.status_written(ended, status(state="Completed", observedGeneration=4))
    assert scrape.series("completed_total") == {}
    assert scrape.series("created_total") == {}


def test_a_job_that_fails_at_once_is_created_and_failed() -> None:
    scrape = Scrape()
    scrape.metrics.status_written(training_job(), failed("Refused"))
    assert scrape.value("created_total", namespace="ml") == 1
    assert scrape.value("failed_total", namespace="ml", reason="Refused") == 1


def test_counts_of_a_namespace_begin_at_zero_and_stay_when_its_jobs_are_gone() -> None:
    scrape = Scrape(training_job())
    assert scrape.series("completed_total") == {("ml", "succeeded"): 0, ("ml", "failed"): 0}
    assert scrape.series("created_total") == {("ml",): 0}
    scrape.metrics.status_written(training_job(), status(state="Completed"))
    scrape.store.remove(BERT)
    scrape.metrics.forget(BERT)
    assert scrape.series("completed_total") == {("ml", "succeeded"): 1}
    assert scrape.series("created_total") == {("ml",): 1}


def test_a_standby_that_reconciles_nothing_shows_nothing() -> None:
    scrape = Scrape(training_job(status=FULL), works=False)
    assert scrape.text().strip() == ""
    scrape.metrics.reconciled(BERT, "done", 0.1)
    assert scrape.of_bert("loss") == 0.25


def test_without_jobs_names_sums_stay_and_the_rest_is_left_out() -> None:
    scrape = Scrape(training_job(status=FULL), named("other", status=FULL), named("x", "cv"), per_job=False)
    scrape.utilization[BERT] = 55.0
    scrape.metrics.reconciled(Key("ml", "other"), "error", 0.05, ValueError())
    assert 'training_job="bert"' not in scrape.text()
    assert scrape.series("allocated_gpus") == {("ml", ""): 8, ("cv", ""): 0}
    assert scrape.series("allocated_workers") == {("ml", ""): 4, ("cv", ""): 0}
    assert scrape.series("reconciliation_total") == {("ml", "done", ""): 1, ("ml", "error", ""): 1}
    assert scrape.series("reconciliation_errors_total") == {("ValueError", "ml", ""): 1}
    assert scrape.value("reconciliation_duration_seconds_count", namespace="ml", training_job="") == 2
    assert scrape.value("total", namespace="ml", state="Running") == 2
    for left_out in ("progress_percent", "current_epoch", "duration_seconds", "loss", "accuracy"):
        assert scrape.series(left_out) == {}
    assert scrape.series("gpu_utilization_percent") == {}


def test_without_jobs_names_a_deleted_job_takes_nothing_from_the_sums() -> None:
    scrape = Scrape(training_job(), per_job=False)
    scrape.metrics.forget(BERT)
    assert scrape.series("reconciliation_total") == {("ml", "done", ""): 1}


class Playing:
    """A reconciler that ends as it is told."""

    def __init__(self, end: Result | BaseException) -> None:
        self.end = end
        self.reported: list[TerminalError] = []

    async def reconcile(self, key: Key) -> Result:
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        self.reported.append(error)


@pytest.mark.parametrize(("end", "result"), [(Done(), "done"), (RequeueAfter(5), "requeue")])
async def test_a_measured_reconcile_gives_what_the_reconciler_gives(end: Result, result: str) -> None:
    scrape = Scrape(training_job(), works=False)
    measured = InstrumentedReconciler(Playing(end), scrape.metrics)
    assert await measured.reconcile(BERT) == end
    assert scrape.series("reconciliation_total") == {("ml", result, "bert"): 1}
    assert scrape.of_bert("reconciliation_duration_seconds_count") == 1


@pytest.mark.parametrize(
    ("error", "result", "errors"),
    [
        (Conflict("changed"), "conflict", {}),
        (AlreadyExists("there"), "conflict", {}),
        (TerminalError("Refused", "no"), "terminal", {}),
        (ServerError("down"), "error", {("ServerError", "ml", "bert"): 1}),
        (ZeroDivisionError(), "error", {("ZeroDivisionError", "ml", "bert"): 1}),
        (asyncio.CancelledError(), "error", {("CancelledError", "ml", "bert"): 1}),
    ],
)
async def test_a_measured_reconcile_raises_what_the_reconciler_raises(
    error: BaseException, result: str, errors: dict[tuple[str, ...], int]
) -> None:
    scrape = Scrape(training_job(), works=False)
    measured = InstrumentedReconciler(Playing(error), scrape.metrics)
    with pytest.raises(type(error)) as raised:
        await measured.reconcile(BERT)
    assert raised.value is error
    assert scrape.series("reconciliation_total") == {("ml", result, "bert"): 1}
    assert scrape.series("reconciliation_errors_total") == errors


async def test_a_lost_lease_is_no_result_of_the_job() -> None:
    scrape = Scrape(training_job(), works=False)
    with pytest.raises(NotLeading):
        await InstrumentedReconciler(Playing(NotLeading("no")), scrape.metrics).reconcile(BERT)
    assert scrape.text().strip() == ""


async def test_a_job_that_is_gone_is_forgotten_and_not_counted() -> None:
    scrape = Scrape(training_job(status=FULL))
    scrape.store.remove(BERT)
    await InstrumentedReconciler(Playing(Done()), scrape.metrics).reconcile(BERT)
    assert 'training_job="bert"' not in scrape.text()


async def test_what_cannot_be_mended_is_reported_by_the_reconciler() -> None:
    scrape = Scrape(training_job())
    playing, error = Playing(Done()), TerminalError("Refused", "no")
    await InstrumentedReconciler(playing, scrape.metrics).report_terminal_error(BERT, error)
    assert playing.reported == [error]


@asynccontextmanager
async def operating(cluster: ScriptedCluster, metrics: Metrics) -> AsyncIterator[None]:
    """An operator that does nothing with TrainingJobs but to measure how long that takes."""
    operator = Operator(cluster, identity="test", now=utc_now, random=Random(0), metrics=metrics)
    store = operator.store(TRAINING_JOBS)
    measured = InstrumentedReconciler(
        Playing(Done()), TrainingJobMetrics(metrics.registry, store, per_job=True, now=utc_now)
    )
    operator.add(Controller(name="t", resource=TRAINING_JOBS, reconciler=measured, writer=operator.writer()))
    running = asyncio.create_task(operator.run())
    yield
    operator.stop()
    await running


async def test_in_an_operator_a_jobs_series_come_and_go_with_it() -> None:
    cluster, metrics = ScriptedCluster(), Metrics()
    cluster.put(TRAINING_JOBS, training_job(status=FULL), namespace="ml")

    async def shown() -> bool:
        return 'training_job="bert"' in generate_latest(metrics.registry).decode()

    async with operating(cluster, metrics):
        await eventually(shown, bool, what="the job's series are there")
        cluster.drop(TRAINING_JOBS, BERT)
        await eventually(shown, lambda there: not there, what="the job's series are gone")
