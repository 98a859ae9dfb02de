"""The `warp_gpuworkload_*` metrics, and the Events of a GPUWorkload."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import get_args

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus, Strategy
from holdfast.decisions import reason_of
from holdfast.gpuworkload.status import MAKING_JOB
from holdfast.runtime.ages import seconds_since, transition
from holdfast.runtime.metrics import ReconcileDurations
from holdfast.runtime.process import Now
from holdfast.runtime.reconciler import EventMessage
from holdfast.times import parse_optional_time

WAITING_PHASES = ("Pending", "Scheduling", "Scheduled")
FAILURES = ("RetriesExhausted", "PermanentFailure", "Refused")


class GPUWorkloadMetrics(ReconcileDurations):
    """Counters start at zero: Prometheus' `increase` does not see a counter that starts at one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._scheduled = Counter(
            "warp_gpuworkload_scheduled", "Nodes chosen, by strategy.", ("strategy",), registry=registry
        )
        self._failed = Counter(
            "warp_gpuworkload_failed", "Workloads that have failed for good.", ("reason",), registry=registry
        )
        self._retries = Counter("warp_gpuworkload_retries", "Failed tries that another follows.", registry=registry)
        super().__init__(registry, "warp_gpuworkload")
        for strategy in get_args(Strategy):
            self._scheduled.labels(strategy)
        for reason in FAILURES:
            self._failed.labels(reason)

    def status_written(self, workload: GPUWorkload, status: GPUWorkloadStatus) -> None:
        """`status` replaced the status of the workload. Each transition is written, and so counted, once."""
        old = workload.status or GPUWorkloadStatus()
        if status.assigned_node and status.job_name != old.job_name:
            self._scheduled.labels(workload.spec.scheduling_strategy).inc()
        if status.retry_count > old.retry_count:
            self._retries.inc()
        if status.phase == "Failed" != old.phase:
            self._failed.labels(reason_of(status)).inc()


class GPUWorkloadGauges:
    """Read from the objects when Prometheus asks. No series is about a single workload: there may be thousands."""

    def __init__(
        self, registry: CollectorRegistry, workloads: Callable[[], Iterable[GPUWorkload]], *, now: Now
    ) -> None:
        self._workloads = workloads
        self._now = now
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        workloads, now = tuple(self._workloads()), self._now()
        counted = GaugeMetricFamily(
            "warp_gpuworkload_workloads", "GPUWorkloads by their phase.", labels=("namespace", "phase")
        )
        for labels, count in Tally((each.metadata.namespace, _phase(each)) for each in workloads).items():
            counted.add_metric(labels, count)
        waiting = GaugeMetricFamily(
            "warp_gpuworkload_waiting_seconds", "How long the one that waits longest has waited.", labels=("namespace",)
        )
        longest: dict[str, float] = {}
        for each in workloads:
            seconds = _waiting_seconds(each, now)
            if seconds is not None:
                longest[each.metadata.namespace] = max(seconds, longest.get(each.metadata.namespace, 0.0))
        for namespace, seconds in longest.items():
            waiting.add_metric((namespace,), seconds)
        yield from (counted, waiting)


def _phase(workload: GPUWorkload) -> str:
    return (workload.status or GPUWorkloadStatus()).phase or "Pending"


def _waiting_seconds(workload: GPUWorkload, now: datetime) -> float | None:
    """Since it does not run; None if it runs, has ended or is suspended."""
    status = workload.status or GPUWorkloadStatus()
    if _phase(workload) not in WAITING_PHASES or reason_of(status) == "Suspended":
        return None
    since = transition(status.conditions, "Running", "False")
    return seconds_since(since or parse_optional_time(workload.metadata.creation_timestamp), now)


# The Events of a GPUWorkload for its user: one for each transition.


def events_for(workload: GPUWorkload, status: GPUWorkloadStatus) -> Iterator[EventMessage]:
    """The Events for the transition from the workload's present status to `status`."""
    old, message = workload.status or GPUWorkloadStatus(), status.message or ""
    if (status.phase, reason_of(status)) == (old.phase, reason_of(old)):
        return  # only the message differs, such as the position in the queue
    match status.phase:
        case "Pending":
            yield _pending_event(old, status)
        case "Scheduling" if status.job_name != old.job_name:
            strategy = workload.spec.scheduling_strategy
            yield EventMessage("NodeChosen", f"{strategy} chose {status.assigned_node} for Job {status.job_name}")
        case "Scheduling":
            yield EventMessage(reason_of(status), message, warning=not message.startswith(MAKING_JOB))
        case "Running" if old.phase != "Running":
            yield EventMessage("Started", message)
        case "Succeeded":
            yield EventMessage("Succeeded", message)
        case "Failed":
            yield EventMessage("Failed", message, warning=True)


def _pending_event(old: GPUWorkloadStatus, status: GPUWorkloadStatus) -> EventMessage:
    message = status.message or ""
    if status.retry_count != old.retry_count:
        return EventMessage("Retrying", f"retry {status.retry_count}: {message}", warning=True)
    if reason_of(status) == "Suspended":
        return EventMessage("Suspended", message)
    if old.assigned_node and not status.assigned_node:
        return EventMessage("Replacing", message, warning=True)
    return EventMessage("Waiting", message, warning=True)
