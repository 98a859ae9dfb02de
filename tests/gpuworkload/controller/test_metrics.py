"""The metrics of GPUWorkloads: steps and reconciles → what Prometheus reads."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from holdfast.api.gpuworkload import GPUWorkloadStatus
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, Conflict, NotLeading, ServerError
from holdfast.gpuworkload.metrics import GPUWorkloadGauges, GPUWorkloadMetrics
from holdfast.runtime.controller import Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.operator import Operator
from holdfast.runtime.reconciler import InstrumentedReconciler
from tests.contract.pool import Pool
from tests.control_plane.waiting import eventually
from tests.gpuworkload.controller.lab import GPU, GPUWorkloadLab
from tests.gpuworkloads import RUNNING, workload
from tests.trainingjobs import at, stamp

DURATION = "warp_gpuworkload_reconcile_duration_seconds_count"
CHOSEN = {"phase": "Scheduling", "assignedNode": "gpu-3", "jobName": "eval-job"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> GPUWorkloadMetrics:
    return GPUWorkloadMetrics(registry)


def read(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"warp_gpuworkload_{name}", labels)


def step(metrics: GPUWorkloadMetrics, before: dict[str, Any] | None, after: dict[str, Any], **spec: Any) -> None:
    metrics.status_written(workload(spec, before), msgspec.convert(after, GPUWorkloadStatus))


@pytest.mark.usefixtures("metrics")
def test_counters_begin_at_zero(registry: CollectorRegistry) -> None:
    for strategy in ("leastLoaded", "random", "costOptimized"):
        assert read(registry, "scheduled_total", strategy=strategy) == 0
    for reason in ("RetriesExhausted", "PermanentFailure", "Refused"):
        assert read(registry, "failed_total", reason=reason) == 0
    assert read(registry, "retries_total") == 0


def test_each_choice_counts_once_under_its_strategy(metrics: GPUWorkloadMetrics, registry: CollectorRegistry) -> None:
    step(metrics, None, CHOSEN, schedulingStrategy="random")
    step(metrics, CHOSEN, {**CHOSEN, "phase": "Scheduled"}, schedulingStrategy="random")
    step(metrics, CHOSEN, {"phase": "Pending", "jobName": "eval-job"}, schedulingStrategy="random")
    assert read(registry, "scheduled_total", strategy="random") == 1
    step(metrics, {"jobName": "eval-job"}, {**CHOSEN, "jobName": "eval-job-1"}, schedulingStrategy="random")
    assert read(registry, "scheduled_total", strategy="random") == 2
    assert read(registry, "scheduled_total", strategy="leastLoaded") == 0


def test_retries_and_failures_count_once(metrics: GPUWorkloadMetrics, registry: CollectorRegistry) -> None:
    retried = {"phase": "Pending", "retryCount": 1}
    step(metrics, RUNNING, retried)
    step(metrics, retried, {**retried, "message": "other words"})
    assert read(registry, "retries_total") == 1
    condition = {"type": "Running", "status": "False", "reason": "RetriesExhausted", "message": ""}
    failed = {**retried, "phase": "Failed", "conditions": [{**condition, "lastTransitionTime": ""}]}
    step(metrics, retried, failed)
    step(metrics, failed, {**failed, "message": "other words"})
    assert read(registry, "failed_total", reason="RetriesExhausted") == 1


class Scripted:
    """A reconciler that does as it is told."""

    def __init__(self, end: Result | Exception) -> None:
        self._end = end
        self.reported: list[str] = []

    async def reconcile(self, _key: Key) -> Result:
        if isinstance(self._end, Exception):
            raise self._end
        return self._end

    async def report_terminal_error(self, _key: Key, error: TerminalError) -> None:
        self.reported.append(error.reason)


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (Done(), "done"),
        (RequeueAfter(1.0), "requeue"),
        (Conflict("x"), "conflict"),
        (AlreadyExists("x"), "conflict"),
        (TerminalError("Refused", "x"), "terminal"),
        (ServerError("x"), "error"),
        (NotLeading("x"), "not_leading"),
    ],
)
async def test_each_reconcile_is_timed_by_how_it_ended(
    metrics: GPUWorkloadMetrics, registry: CollectorRegistry, end: Result | Exception, result: str
) -> None:
    measured = InstrumentedReconciler(Scripted(end), metrics)
    if isinstance(end, Exception):
        with pytest.raises(type(end)):
            await measured.reconcile(Key("ml", "eval"))
    else:
        assert await measured.reconcile(Key("ml", "eval")) == end
    assert registry.get_sample_value(DURATION, {"result": result}) == 1


async def test_what_is_final_is_passed_on(metrics: GPUWorkloadMetrics) -> None:
    scripted = Scripted(Done())
    await InstrumentedReconciler(scripted, metrics).report_terminal_error(
        Key("ml", "eval"), TerminalError("Refused", "x")
    )
    assert scripted.reported == ["Refused"]


async def test_an_operator_shows_them(lab: GPUWorkloadLab, pool: Pool, operator: Operator) -> None:
    await pool.add(resources={GPU: "2"})
    await lab.submit(schedulingStrategy="costOptimized")
    await lab.until_phase("Running")
    assert read(operator.registry, "scheduled_total", strategy="costOptimized") == 1
    assert (operator.registry.get_sample_value(DURATION, {"result": "done"}) or 0) > 0

    async def running() -> float | None:
        return read(operator.registry, "workloads", namespace=lab.namespace, phase="Running")

    await eventually(running, lambda count: count == 1, what="the workload is shown as Running")


def waiting(phase: str, since_s: float, reason: str = "WaitingForGpus") -> dict[str, Any]:
    condition = {"type": "Running", "status": "False", "reason": reason, "message": ""}
    return {"phase": phase, "conditions": [{**condition, "lastTransitionTime": stamp(since_s)}]}


def test_workloads_are_counted_by_phase_and_the_longest_wait_of_a_namespace_is_shown(
    registry: CollectorRegistry,
) -> None:
    shown = [workload(status=waiting("Pending", 60)), workload(status=waiting("Scheduling", 90)), workload({}, RUNNING)]
    GPUWorkloadGauges(registry, lambda: shown, now=lambda: at(100))
    assert read(registry, "workloads", namespace="ml", phase="Pending") == 1
    assert read(registry, "workloads", namespace="ml", phase="Running") == 1
    assert read(registry, "waiting_seconds", namespace="ml") == 40


@pytest.mark.parametrize(
    ("status", "seconds"), [(None, 160), (waiting("Pending", 0, "Suspended"), None), (waiting("Failed", 0), None)]
)
def test_a_workload_waits_from_the_beginning_and_not_while_it_is_suspended_or_over(
    registry: CollectorRegistry, status: dict[str, Any] | None, seconds: float | None
) -> None:
    GPUWorkloadGauges(registry, lambda: [workload(status=status)], now=lambda: at(100))
    assert read(registry, "waiting_seconds", namespace="ml") == seconds
