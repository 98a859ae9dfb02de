"""The `spotinstancejob_*` metrics, and the Events of a SpotInstanceJob."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from holdfast.api.meta import Condition, is_true
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.api.spotinstancejob_status import (
    Cause,
    Recovery,
    RecoverySource,
    ReplicaStatus,
    Restarts,
    SpotInstanceJobStatus,
)
from holdfast.runtime.ages import seconds_since, transition, unsaved_seconds
from holdfast.runtime.metrics import ReconcileDurations
from holdfast.runtime.process import Now
from holdfast.runtime.reconciler import EventMessage
from holdfast.spotinstancejob.snapshot import condition_of, replica_of, status_of
from holdfast.times import parse_optional_time

WAITING_PHASES = ("Pending", "Provisioning", "Recovering")
ENDED = ("Succeeded", "Failed")
LOST_S = (1, 10, 30, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 24 * 3600)
# Phases of replicas that are worth an Event.
EVENT_REASONS = {"Running": "Running", "Failed": "ReplicaFailed"}


class SpotInstanceJobMetrics(ReconcileDurations):
    """Counters start at zero: Prometheus' `increase` does not see a counter that starts at one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._losses = Counter(
            "spotinstancejob_replica_losses", "Attempts that ended early, by cause.", ("cause",), registry=registry
        )
        self._recoveries = Counter(
            "spotinstancejob_recoveries",
            "Attempts that were started after a loss, by where their state came from.",
            ("source",),
            registry=registry,
        )
        self._lost = Histogram(
            "spotinstancejob_lost_seconds",
            "Seconds of training that a recovery had to repeat.",
            buckets=LOST_S,
            registry=registry,
        )
        self._checkpoints = Counter(
            "spotinstancejob_checkpoints",
            "Checkpoints of replicas that ended, by result.",
            ("result",),
            registry=registry,
        )
        self._machines = Counter(
            "spotinstancejob_machines_ordered", "Machines that were ordered for replicas.", registry=registry
        )
        self._ended = Counter("spotinstancejob_ended", "Jobs that ended, by phase.", ("phase",), registry=registry)
        super().__init__(registry, "spotinstancejob")
        for cause in get_args(Cause):
            self._losses.labels(cause)
        for source in get_args(RecoverySource):
            self._recoveries.labels(source)
        for result in ("saved", "failed"):
            self._checkpoints.labels(result)
        for phase in ENDED:
            self._ended.labels(phase)

    def status_written(self, job: SpotInstanceJob, status: SpotInstanceJobStatus) -> None:
        """`status` replaced the status of the job. Each transition is written, and so counted, once."""
        old = status_of(job)
        for cause, count in _new_restarts(old.restarts, status.restarts):
            self._losses.labels(cause).inc(count)
        for recovery in _new_recoveries(old, status):
            self._recoveries.labels(recovery.source).inc()
            self._lost.observe(recovery.lost_seconds)
        self._machines.inc(sum(_ordered(old, each) for each in status.job_statuses))
        said = _changed_condition(old, status, "Checkpointed")
        if said is not None and said.reason in ("Saved", "CheckpointFailed"):
            self._checkpoints.labels("saved" if said.reason == "Saved" else "failed").inc()
        if status.phase in ENDED and status.phase != old.phase:
            self._ended.labels(status.phase).inc()


class SpotInstanceJobGauges:
    """Read from the objects when Prometheus asks. What is not known is absent, and never 0."""

    def __init__(self, registry: CollectorRegistry, jobs: Callable[[], Iterable[SpotInstanceJob]], *, now: Now) -> None:
        self._jobs = jobs
        self._now = now
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        jobs, now = tuple(self._jobs()), self._now()
        counted = GaugeMetricFamily(
            "spotinstancejob_jobs", "SpotInstanceJobs by their phase.", labels=("namespace", "phase")
        )
        for labels, count in Tally((job.metadata.namespace, _phase(job)) for job in jobs).items():
            counted.add_metric(labels, count)
        waiting = _per_job("waiting_seconds", "How long no replica of the job has run, while one should.")
        age = _per_job("checkpoint_age_seconds", "Since the newest checkpoint of the job was taken.")
        unsaved = _per_job("unsaved_seconds", "Training that a loss of all replicas would cost now.")
        interval = _per_job("checkpoint_interval_seconds", "Time between two checkpoints of a replica.")
        for job in jobs:
            status = status_of(job)
            if status.phase not in ENDED:
                last = status.last_checkpoint_time
                _add(waiting, job, _waiting_seconds(job, now))
                _add(age, job, seconds_since(parse_optional_time(last), now))
                _add(unsaved, job, unsaved_seconds(status.conditions, last, now))
                _add(interval, job, status.checkpoint_interval_seconds)
        yield from (counted, waiting, age, unsaved, interval)


def _per_job(name: str, meaning: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"spotinstancejob_{name}", meaning, labels=("namespace", "spot_instance_job"))


def _add(family: GaugeMetricFamily, job: SpotInstanceJob, value: float | None) -> None:
    if value is not None:
        family.add_metric((job.metadata.namespace, job.metadata.name), value)


def _phase(job: SpotInstanceJob) -> str:
    return status_of(job).phase or "Pending"


def _waiting_seconds(job: SpotInstanceJob, now: datetime) -> float | None:
    conditions = status_of(job).conditions
    if _phase(job) not in WAITING_PHASES or is_true(conditions, "Running"):
        return None
    since = transition(conditions, "Running", "False")
    return seconds_since(since or parse_optional_time(job.metadata.creation_timestamp), now)


# The Events of a SpotInstanceJob for its user: one for each step.


def events_for(job: SpotInstanceJob, status: SpotInstanceJobStatus) -> Iterator[EventMessage]:
    """The Events for the transition from the job's present status to `status`."""
    old = status_of(job)
    for replica in status.job_statuses:
        yield from _replica_events(old, replica)
    for recovery in _new_recoveries(old, status):
        yield _recovery_event(recovery)
    saved = _changed_condition(old, status, "Checkpointed")
    if saved is not None:
        yield EventMessage(saved.reason, saved.message, warning=saved.reason != "Saved")
    provisioning = condition_of(status, "Provisioning")
    if provisioning is not None and provisioning.status == "False" and provisioning.reason != "NotNeeded":
        before = condition_of(old, "Provisioning")
        if before is None or before.reason != provisioning.reason:
            yield EventMessage(provisioning.reason, provisioning.message, warning=status.phase not in ENDED)
    if status.phase != old.phase and status.phase in ("Suspended", *ENDED):
        yield EventMessage(status.phase, status.message or "", warning=status.phase == "Failed")


def _replica_events(old: SpotInstanceJobStatus, replica: ReplicaStatus) -> Iterator[EventMessage]:
    before, who = replica_of(old, replica.replica), f"replica {replica.replica}"
    was_lost = before is not None and before.attempt < replica.attempt and replica.cause is not None
    if was_lost:
        yield EventMessage("ReplicaLost", f"{who}: {replica.message}; attempt {replica.attempt} follows", warning=True)
    if _ordered(old, replica):
        yield EventMessage("MachineOrdered", f"{who}: machine {replica.machine}")
    if replica.node_name and (before is None or before.node_name != replica.node_name):
        yield EventMessage("NodeChosen", f"{who}: attempt {replica.attempt} gets node {replica.node_name}")
    if replica.phase in EVENT_REASONS and (
        before is None or (before.phase, before.name) != (replica.phase, replica.name)
    ):
        text = replica.message if replica.phase == "Failed" else f"{replica.name} runs on {replica.node_name}"
        yield EventMessage(EVENT_REASONS[replica.phase], f"{who}: {text}", warning=replica.phase == "Failed")


def _recovery_event(recovery: Recovery) -> EventMessage:
    who = f"replica {recovery.replica}"
    if recovery.source == "start":
        text = f"{who} begins anew: there is no image that it could go on from"
        return EventMessage("RestartedFromBeginning", text, warning=True)
    of = "a survivor's checkpoint" if recovery.source == "survivor" else "the newest image of the repository"
    return EventMessage("Recovered", f"{who} goes on from {of}, {recovery.image}; {recovery.lost_seconds} s are lost")


def _ordered(old: SpotInstanceJobStatus, replica: ReplicaStatus) -> bool:
    """Whether a machine was ordered for the replica in this transition."""
    before = replica_of(old, replica.replica)
    if replica.machine_try == 0:
        return False
    return before is None or (before.attempt, before.machine_try) != (replica.attempt, replica.machine_try)


def _changed_condition(old: SpotInstanceJobStatus, status: SpotInstanceJobStatus, kind: str) -> Condition | None:
    """The condition, if it says something else than before."""
    before, now = condition_of(old, kind), condition_of(status, kind)
    return now if now is not None and (before is None or before.message != now.message) else None


def _new_recoveries(old: SpotInstanceJobStatus, status: SpotInstanceJobStatus) -> tuple[Recovery, ...]:
    """The list is cut at its beginning."""
    known = old.recoveries[-1:]
    if not known or known[0] not in status.recoveries:
        return status.recoveries
    return status.recoveries[status.recoveries.index(known[0]) + 1 :]


def _new_restarts(old: Restarts | None, new: Restarts | None) -> Iterator[tuple[Cause, int]]:
    before, after = old or Restarts(), new or Restarts()
    counts: dict[Cause, int] = {
        "preemption": after.preemption - before.preemption,
        "infrastructure": after.infrastructure - before.infrastructure,
        "outOfMemory": after.out_of_memory - before.out_of_memory,
        "application": after.application - before.application,
    }
    yield from ((cause, count) for cause, count in counts.items() if count > 0)
