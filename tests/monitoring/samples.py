"""Registries as an operator and an agent have them, in which every metric has a value that grows from scrape to scrape.

The classes are those that the controllers use; what they are told is made up.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import structs
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from holdfast.api.meta import Key
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.checkpointbackup.metrics import AgentGauges, CheckpointBackupMetrics
from holdfast.gpuworkload.metrics import GPUWorkloadGauges, GPUWorkloadMetrics
from holdfast.machines.metrics import MachineMetrics
from holdfast.machines.vm_controller import SpotInstanceVMMetrics
from holdfast.node.metrics import AgentMetrics
from holdfast.node.notice.metrics import NoticeMetrics
from holdfast.runtime.informer import Store
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import utc_now
from holdfast.spotinstancejob.metrics import SpotInstanceJobGauges, SpotInstanceJobMetrics
from holdfast.times import format_time
from holdfast.trainingjob.metrics import TrainingJobMetrics
from tests.checkpointbackup.backups import BEGUN, IMAGE, backup
from tests.checkpointbackup.test_metrics import agent
from tests.gpuworkloads import workload
from tests.machines import observations as machines
from tests.spotinstancejob.jobs import spot_job
from tests.spotinstancejob.test_metrics import RECOVERY
from tests.trainingjobs import training_job

JSON = dict[str, Any]


class Growing:
    """Last in its registry: each scrape finds all counters higher than the one before it."""

    def __init__(self, registry: CollectorRegistry, grow: Callable[[int], None]) -> None:
        self._grow = grow
        self._scrapes = 0
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Nothing: what is asked at the registration is no scrape."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        self._scrapes += 1
        self._grow(self._scrapes)
        yield from ()


def ago(seconds: float) -> str:
    return format_time(utc_now() - timedelta(seconds=seconds))


def condition(kind: str, status: str, reason: str, since_s: float) -> JSON:
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": ago(since_s)}


def operator_registry() -> CollectorRegistry:
    metrics = Metrics()
    kinds = (Jobs(metrics.registry), Workloads(metrics.registry), Backups(metrics.registry), Spot(metrics.registry))
    machinery = Machinery(metrics.registry)
    metrics.track_queue("trainingjob", lambda: 3)
    metrics.leading(True)

    def grow(scrape: int) -> None:
        for controller, result in (("trainingjob", "done"), ("gpuworkload", "error")):
            metrics.reconciled(controller, result, 0.02)
        metrics.retried("gpuworkload")
        metrics.watch_restarted("pods", "ended")
        metrics.handler_failed("pods")
        metrics.undecodable("trainingjobs")
        metrics.requested("get", "pods", 200, 0.01)
        metrics.event_dropped("rate")
        for each in (*kinds, machinery):
            each.grow(scrape)

    Growing(metrics.registry, grow)
    return metrics.registry


def agent_registry() -> CollectorRegistry:
    metrics = Metrics()
    runs, notices = AgentMetrics(metrics.registry), NoticeMetrics(metrics.registry)
    runs.track_free_bytes(lambda: 1 << 30)

    def grow(_scrape: int) -> None:
        metrics.requested("get", "pods", 200, 0.01)
        runs.run_ended("Completed")
        runs.kubelet_called("200")
        runs.frozen(2.0)
        runs.pushed(1 << 20, 3.0)
        runs.running(True)
        notices.noticed("Compute Engine")
        notices.called("asked")
        notices.metadata_failed("Compute Engine")

    Growing(metrics.registry, grow)
    return metrics.registry


class Jobs:
    """`ml/bert` trains, `ml/gpt` waits; others are created, restarted and ended with each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._store: Store[TrainingJob] = Store()
        self._metrics = TrainingJobMetrics(
            registry, self._store, per_job=True, now=utc_now, gpu_utilization_percent=lambda _: 87.0
        )
        self.grow(0)

    def grow(self, scrape: int) -> None:
        self._store.put(self._bert(scrape))
        waiting = {"state": "Pending", "conditions": [condition("Running", "False", "WaitingForGpus", 7200)]}
        self._store.put(named(training_job(status=waiting), "gpt"))
        for key in (Key("ml", "bert"), Key("ml", "gpt")):
            self._metrics.reconciled(key, "done", 0.02)
            self._metrics.reconciled(key, "error", 0.02, TimeoutError())
        running = {"state": "Running", "conditions": [condition("Running", "True", "WorkersReady", 600)]}
        lost = {
            "state": "Restarting",
            "conditions": [condition("Running", "False", "Preempted", 0)],
            "restartCount": 1,
            "restarts": {"preemption": 1},
        }
        failed = {"state": "Failed", "conditions": [condition("Failed", "True", "BackoffLimitExceeded", 0)]}
        for before, after in ((None, running), (running, lost), (lost, failed), (running, {"state": "Completed"})):
            self._metrics.status_written(
                named(training_job(status=before), "other"), msgspec.convert(after, TrainingJobStatus)
            )

    @staticmethod
    def _bert(scrape: int) -> TrainingJob:
        status = {
            "state": "Running",
            "conditions": [condition("Running", "True", "WorkersReady", 3600)],
            "progress": f"{min(99, 10 + scrape)}%",
            "currentEpoch": 4,
            "metrics": {"loss": 0.25, "accuracy": 0.9},
            "resources": {"gpus": 8, "workers": 2},
            "startTime": ago(4000),
            "checkpoint": {"lastTime": ago(900)},
            "restarts": {"preemption": scrape},
        }
        return training_job({"checkpoint": {"interval": "10m"}}, status=status)


class Workloads:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = GPUWorkloadMetrics(registry)
        GPUWorkloadGauges(registry, lambda: [workload()], now=utc_now)

    def grow(self, scrape: int) -> None:
        steps: list[JSON] = [
            {"phase": "Scheduling", "assignedNode": "gpu-1", "jobName": f"job-{scrape}"},
            {"phase": "Pending", "retryCount": 1},
            {"phase": "Failed", "conditions": [condition("Running", "False", "RetriesExhausted", 0)]},
        ]
        for step in steps:
            status = workload(status=step).status
            assert status is not None
            self._metrics.status_written(workload(), status)
        self._metrics.reconciled(Key("ml", "eval"), "done", 0.02)


class Backups:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = 0.0
        self._metrics = CheckpointBackupMetrics(registry, lambda: self._seconds)
        AgentGauges(registry, lambda: [agent("gpu-1", ready=True), agent("gpu-2", ready=False)])

    def grow(self, scrape: int) -> None:
        run = {**BEGUN, "run": scrape + 1}
        pushing = {**run, "phase": "ImagePushing"}
        done = {**run, "phase": "Completed", "builtImages": [IMAGE], "bytes": 1 << 20, "frozenSeconds": 2.0}
        self._metrics.status_written(backup(status=run), status_of_backup(pushing))
        self._seconds += 10
        self._metrics.status_written(backup(status=pushing), status_of_backup(done))
        self._metrics.status_written(backup(status=done), status_of_backup({**done, "missedRuns": 1}))
        self._metrics.images_deleted(1)
        self._metrics.reconciled(Key("ml", "save"), "done", 0.02)


class Spot:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = SpotInstanceJobMetrics(registry)
        running = {
            "phase": "Running",
            "conditions": [condition("Running", "True", "ReplicasRunning", 3600)],
            "lastCheckpointTime": ago(900),
            "checkpointIntervalSeconds": 600,
        }
        waiting = {"phase": "Pending", "conditions": [condition("Running", "False", "NotRunning", 7200)]}
        jobs = [spot_job(status=running), named(spot_job(status=waiting), "gpt")]
        SpotInstanceJobGauges(registry, lambda: jobs, now=utc_now)

    def grow(self, scrape: int) -> None:
        status: JSON = {
            "phase": "Succeeded",
            "restarts": {"preemption": 1},
            "recoveries": [{**RECOVERY, "lostSeconds": 30}, {**RECOVERY, "source": "start", "replica": 1}],
            "jobStatuses": [{"name": "bert-r0-0", "machine": "bert-r0-0-m0", "machineTry": 1}],
            "conditions": [condition("Checkpointed", "True", "Saved", 0)],
        }
        self._metrics.status_written(spot_job(), msgspec.convert(status, SpotInstanceJobStatus))
        self._metrics.reconciled(Key("ml", "bert"), "done", 0.02)


class Machinery:
    def __init__(self, registry: CollectorRegistry) -> None:
        shown = [machines.instance(machines.SERVING), machines.instance(machines.ASKED)]
        self._metrics = MachineMetrics(registry, lambda: shown)
        self._templates = SpotInstanceVMMetrics(registry)

    def grow(self, scrape: int) -> None:
        preempted = machines.condition("Preempted", "True", "PreemptionNotice")
        noticed = {**machines.SERVING, "conditions": (*machines.SERVING["conditions"], preempted)}
        steps: list[tuple[JSON, JSON]] = [
            (machines.ASKED, machines.LAUNCHED),
            (machines.LAUNCHED, machines.JOINED),
            (machines.LAUNCHED, machines.ENDING),
            (machines.SERVING, noticed),
        ]
        for before, after in steps:
            status = machines.instance(after).status
            assert status is not None
            self._metrics.status_written(machines.instance(before), status)
        self._metrics.listed([machines.MACHINE], 30.0)
        self._metrics.leaked(machines.ZONE)
        self._metrics.requested("instances.insert", 200)
        self._metrics.reconciled(Key("ml", "m"), "done", 0.02)
        self._templates.reconciled(Key("ml", "t4"), "done", 0.02)


def named(obj: Any, name: str) -> Any:
    return structs.replace(obj, metadata=structs.replace(obj.metadata, name=name, creation_timestamp=ago(7200)))


def status_of_backup(body: JSON) -> Any:
    return backup(status=body).status
