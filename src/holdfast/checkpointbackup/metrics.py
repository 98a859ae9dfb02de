"""The `checkpointbackup_*` metrics, and the Events of a CheckpointBackup."""

from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from holdfast.api.checkpointbackup import (
    SUCCESSFUL_PHASES,
    TERMINAL_PHASES,
    CheckpointBackup,
    CheckpointBackupStatus,
    RunMode,
)
from holdfast.api.core.objects import Pod
from holdfast.checkpointbackup.observe import is_ready_agent
from holdfast.checkpointbackup.snapshot import SCHEDULED, SUSPENDED, condition_of, is_under_way, status_of
from holdfast.runtime.metrics import ReconcileDurations
from holdfast.runtime.reconciler import EventMessage

FROZEN_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
PUSH_S = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
NO_MODE = "none"


class CheckpointBackupMetrics(ReconcileDurations):
    """Counters start at zero: Prometheus' `increase` does not see a counter that starts at one.

    `clock` measures how long pushes take, as far as this process sees their beginning and their end.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pushing: dict[tuple[str, int], float] = {}
        self._runs = Counter(
            "checkpointbackup_runs",
            "Runs by mode and result; mode none: the run could not begin.",
            ("mode", "result"),
            registry=registry,
        )
        self._missed = Counter(
            "checkpointbackup_missed_runs", "Moments of schedules that no run of their own began at.", registry=registry
        )
        self._bytes = Counter("checkpointbackup_image_bytes", "Bytes of pushed images.", ("mode",), registry=registry)
        self._deleted = Counter("checkpointbackup_deleted_images", "Images of old runs deleted.", registry=registry)
        self._frozen = Histogram(
            "checkpointbackup_frozen_seconds",
            "How long the containers of a run stood still.",
            buckets=FROZEN_S,
            registry=registry,
        )
        self._push = Histogram(
            "checkpointbackup_push_seconds",
            "How long the images of a run were pushed.",
            ("mode",),
            buckets=PUSH_S,
            registry=registry,
        )
        super().__init__(registry, "checkpointbackup")
        for mode in get_args(RunMode):
            self._bytes.labels(mode)
            for phase in sorted(TERMINAL_PHASES):
                self._runs.labels(mode, phase)
        self._runs.labels(NO_MODE, "Failed")

    def status_written(self, backup: CheckpointBackup, status: CheckpointBackupStatus) -> None:
        """`status` replaced the status of the backup, by this operator or by an agent."""
        old, run = status_of(backup), (backup.metadata.uid, status.run)
        self._missed.inc(max(0, status.missed_runs - old.missed_runs))
        if status.phase == "ImagePushing" != old.phase:
            self._pushing[run] = self._clock()
        if status.phase == "ImagePushed" or status.phase in TERMINAL_PHASES:
            began_s = self._pushing.pop(run, None)
            if began_s is not None:
                self._push.labels(status.mode or NO_MODE).observe(self._clock() - began_s)
        if _has_ended(old, status):
            self._run_ended(status)

    def _run_ended(self, status: CheckpointBackupStatus) -> None:
        self._runs.labels(status.mode or NO_MODE, status.phase or "").inc()
        if not status.built_images:
            return
        self._bytes.labels(status.mode or NO_MODE).inc(status.bytes)
        if status.mode == "container" and status.frozen_seconds is not None:
            self._frozen.observe(status.frozen_seconds)

    def images_deleted(self, count: int) -> None:
        self._deleted.inc(count)


def _has_ended(old: CheckpointBackupStatus, status: CheckpointBackupStatus) -> bool:
    """A refused spec has a phase, too, but no run."""
    is_new = (old.run, old.phase) != (status.run, status.phase)
    return is_new and status.run > 0 and status.phase in TERMINAL_PHASES


class AgentGauges:
    """Which agents of nodes are ready, as their pods say. Read from the pods when Prometheus asks."""

    def __init__(self, registry: CollectorRegistry, agents: Callable[[], Iterable[Pod]]) -> None:
        self._agents = agents
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        ready: dict[str, bool] = {}
        for pod in self._agents():
            node = pod.spec.node_name
            ready[node] = ready.get(node, False) or is_ready_agent(pod)
        family = GaugeMetricFamily(
            "holdfast_node_agent_ready", "1 while the agent of the node is ready, 0 while it is not.", labels=("node",)
        )
        for node, is_ready in sorted(ready.items()):
            family.add_metric((node,), is_ready)
        yield family


# The Events of a CheckpointBackup for its user: one for each transition that matters.


def events_for(backup: CheckpointBackup, status: CheckpointBackupStatus) -> Iterator[EventMessage]:
    """The Events for the transition from the backup's status to `status`, whoever wrote it."""
    old, message = status_of(backup), status.message or ""
    if status.run != old.run and status.phase not in TERMINAL_PHASES:
        what = f"run {status.run} of pod {backup.spec.pod_ref.name} on node {status.node_name}"
        yield EventMessage("RunStarted", f"{what}, mode {status.mode} ({status.mode_reason})")
        return
    if status.phase in TERMINAL_PHASES and (old.run, old.phase) != (status.run, status.phase):
        yield EventMessage(status.phase, message, warning=status.phase not in SUCCESSFUL_PHASES)
        return
    before, after = condition_of(old, SCHEDULED), condition_of(status, SCHEDULED)
    if after is not None and after.status == "False" and (before is None or before.reason != after.reason):
        reason = SUSPENDED if after.reason == SUSPENDED else "ScheduleEnded"
        yield EventMessage(reason, after.message)
    elif message and message != old.message and status.phase == old.phase and _is_waiting(backup, status):
        yield EventMessage("Waiting", message, warning=True)


def _is_waiting(backup: CheckpointBackup, status: CheckpointBackupStatus) -> bool:
    """Something is said that is not the last run's word: why a run does not begin or does not go on."""
    completed = condition_of(status, "Completed")
    return is_under_way(backup) or status.run == 0 or completed is None or completed.message != status.message
