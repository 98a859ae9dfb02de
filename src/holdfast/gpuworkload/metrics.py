"""The `warp_gpuworkload_*` metrics, and the Events of a GPUWorkload."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus, Strategy
from holdfast.decisions import reason_of
from holdfast.gpuworkload.status import MAKING_JOB
from holdfast.runtime.metrics import ReconcileDurations
from holdfast.runtime.reconciler import EventMessage

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
