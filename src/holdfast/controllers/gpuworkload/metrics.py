"""The `warp_gpuworkload_*` metrics."""

import asyncio
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus, Strategy
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, Conflict, NotLeading
from holdfast.planning.gpuworkload.status import reason_of
from holdfast.runtime.controller import Reconciler
from holdfast.runtime.metrics import DURATIONS_S
from holdfast.runtime.result import RequeueAfter, Result, TerminalError

FAILURES = ("RetriesExhausted", "PermanentFailure", "Refused")


class GPUWorkloadMetrics:
    """Counters begin at zero: Prometheus' `increase` does not see one that begins at one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._scheduled = Counter(
            "warp_gpuworkload_scheduled", "Nodes chosen, by strategy.", ("strategy",), registry=registry
        )
        self._failed = Counter(
            "warp_gpuworkload_failed", "Workloads that have failed for good.", ("reason",), registry=registry
        )
        self._retries = Counter("warp_gpuworkload_retries", "Failed tries that another follows.", registry=registry)
        self._durations = Histogram(
            "warp_gpuworkload_reconcile_duration_seconds",
            "How long one reconcile takes, by how it ended.",
            ("result",),
            buckets=DURATIONS_S,
            registry=registry,
        )
        for strategy in get_args(Strategy):
            self._scheduled.labels(strategy)
        for reason in FAILURES:
            self._failed.labels(reason)

    def stepped(self, workload: GPUWorkload, status: GPUWorkloadStatus) -> None:
        """`status` was written over the one of the workload: each step is written, and so counted, once."""
        old = workload.status or GPUWorkloadStatus()
        if status.assigned_node and status.job_name != old.job_name:
            self._scheduled.labels(workload.spec.scheduling_strategy).inc()
        if status.retry_count > old.retry_count:
            self._retries.inc()
        if status.phase == "Failed" != old.phase:
            self._failed.labels(reason_of(status)).inc()

    def reconciled(self, result: str, seconds: float) -> None:
        self._durations.labels(result).observe(seconds)


class Measured:
    """A reconciler whose reconciles are timed."""

    def __init__(self, reconciler: Reconciler, metrics: GPUWorkloadMetrics) -> None:
        self._reconciler = reconciler
        self._metrics = metrics

    async def reconcile(self, key: Key) -> Result:
        loop = asyncio.get_running_loop()
        began, ended = loop.time(), "error"
        try:
            result = await self._reconciler.reconcile(key)
            ended = "requeue" if isinstance(result, RequeueAfter) else "done"
        except NotLeading:
            ended = "not_leading"
            raise
        except (Conflict, AlreadyExists):
            ended = "conflict"
            raise
        except TerminalError:
            ended = "terminal"
            raise
        finally:
            self._metrics.reconciled(ended, loop.time() - began)
        return result

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        await self._reconciler.report_terminal_error(key, error)
