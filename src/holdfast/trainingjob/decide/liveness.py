"""A training that lives and does not get on.

Only what was heard counts: while the workers' reports do not arrive, nobody can say that there is no progress. Times
are of the operator's own clock, in seconds; hearing begins when the operator begins to lead and its server answers.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.core.objects import Pod
from holdfast.api.reports import Progress, WorkerReport
from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.failure import FailureClass, WorkerFailure, index_of, worker_text
from holdfast.times import parse_time
from holdfast.trainingjob.decide.snapshot import Timing

# What this operator has heard of an attempt's workers, by its own clock; nothing of it outlives the operator.

ProgressPoint: TypeAlias = tuple[int, int]


class WorkerReports(Struct, frozen=True):
    """Of one worker."""

    heard_s: float
    point: ProgressPoint | None = None
    """How far it was when it last told of progress."""
    saves_on_notice: bool = False
    """Its training saves when it is asked to."""
    gpu_percent: float | None = None
    """The utilization of its GPUs; None while it is unknown."""


class AttemptReports(Struct, frozen=True):
    attempt: int
    first_s: float
    progress_s: float
    """When progress was last told of, or the first word if there was none yet."""
    workers: Mapping[int, WorkerReports] = {}
    """By the worker's index."""


def record_report(before: AttemptReports | None, batch: WorkerReport, now_s: float) -> AttemptReports:
    """A report that tells once more what it told before is a sign of life and no progress."""
    old = before if before is not None and before.attempt == batch.attempt else None
    voice = old.workers.get(batch.index) if old is not None else None
    told = _point(batch.progress[-1]) if batch.progress else None
    is_progress = told is not None and (voice is None or told != voice.point)
    new = WorkerReports(
        now_s,
        told or (voice.point if voice is not None else None),
        batch.saves_on_notice,
        batch.gpu_utilization_percent,
    )
    return AttemptReports(
        attempt=batch.attempt,
        first_s=old.first_s if old is not None else now_s,
        progress_s=now_s if is_progress or old is None else old.progress_s,
        workers={**(old.workers if old is not None else {}), batch.index: new},
    )


def gpu_utilization_percent(heard: AttemptReports | None, now_s: float, silent_s: float) -> float | None:
    """The mean over the workers that report one and are not silent; None where none does."""
    workers = heard.workers.values() if heard is not None else ()
    known = [
        voice.gpu_percent for voice in workers if voice.gpu_percent is not None and now_s - voice.heard_s < silent_s
    ]
    return round(sum(known) / len(known), 1) if known else None


def _point(entry: Progress) -> ProgressPoint:
    """Epochs done and steps beyond them. It may go back: a training that was suspended goes on from a checkpoint."""
    return (entry.epoch, 0) if entry.step is None else (entry.epoch - 1, entry.step)


def find_hang(
    job: TrainingJob,
    heard: AttemptReports | None,
    running: Collection[int],
    *,
    running_since_s: float,
    hearing_since_s: float,
) -> WorkerFailure | None:
    """`running` are the indexes of the workers that have not ended, since `running_since_s` all of them."""
    limit_s = job.spec.progress_deadline_seconds
    if (
        limit_s is None
        or heard is None
        or not _is_current_attempt(job, heard)
        or not set(running) <= heard.workers.keys()
    ):
        return None
    if not running or job.status is None or job.status.state != "Running":
        return None
    heard_s = min(heard.workers[index].heard_s for index in running)
    silent_s = heard_s - _since_s(heard, running_since_s, hearing_since_s)
    if silent_s < limit_s:
        return None
    epoch = f", after epoch {job.status.current_epoch}" if job.status.current_epoch is not None else ""
    message = f"the workers live and no progress was reported for {silent_s:.0f} s{epoch}"
    return WorkerFailure(cause="hang", message=f"{message} (progressDeadlineSeconds is {limit_s})")


def hang_due_s(
    job: TrainingJob, heard: AttemptReports | None, *, running_since_s: float, hearing_since_s: float
) -> float | None:
    """When to look again, if nothing is heard until then."""
    limit_s = job.spec.progress_deadline_seconds
    if limit_s is None or heard is None or not _is_current_attempt(job, heard):
        return None
    return _since_s(heard, running_since_s, hearing_since_s) + limit_s


def _since_s(heard: AttemptReports, running_since_s: float, hearing_since_s: float) -> float:
    return max(heard.progress_s, running_since_s, hearing_since_s)


def _is_current_attempt(job: TrainingJob, heard: AttemptReports) -> bool:
    return job.status is not None and heard.attempt == job.status.restart_count


# A worker that is lost with its node, seen early: neither it nor the node gives a sign of life.
#
# Kubernetes itself waits 40 s before it calls a node NotReady, and 300 s more before it deletes the node's pods.
# Silence alone proves nothing: a network policy or a sidecar's crash looks the same. So the node's Lease is read for
# those that are silent; a node whose Lease changes is alive. Times are of the operator's own clock, in seconds: what
# a Lease says about the time is the node's opinion.

# Two looks at a Lease that are further apart prove nothing: the API server may have been away, for the node too.
LONGEST_GAP_S = 10.0
LOOK_EVERY_S = 4.0
# More than the ten seconds in which a kubelet renews its Lease.
DOUBTFUL_FRACTION = 0.75
# Beyond its grace, before a pod's node is looked at.
OVERDUE_S = 3.0


class LeaseObservation(Struct, frozen=True):
    """A node's Lease over several looks."""

    renewed: str
    since_s: float
    """When it was first seen like this."""
    looked_s: float


def observe_lease(before: LeaseObservation | None, renewed: str, now_s: float) -> LeaseObservation:
    """After a look that succeeded; `renewed` is what the Lease says, and only whether it differs counts."""
    if before is None or before.renewed != renewed or now_s - before.looked_s > LONGEST_GAP_S:
        return LeaseObservation(renewed, now_s, now_s)
    return LeaseObservation(renewed, before.since_s, now_s)


def without_stale(pulses: Mapping[str, LeaseObservation], now_s: float) -> dict[str, LeaseObservation]:
    """Those that still prove something; `pulses` is by the node's name."""
    return {node: pulse for node, pulse in pulses.items() if now_s - pulse.looked_s <= LONGEST_GAP_S}


def silent_workers(
    pods: Iterable[Pod], heard: AttemptReports | None, *, hearing_since_s: float, now_s: float, timing: Timing
) -> tuple[Pod, ...]:
    """Those of the current attempt's workers whose nodes' Leases are to be read now.

    None is missed before this operator has heard one of them: without sidecars, or where no report comes through,
    nobody ever says anything.
    """
    return tuple(
        pod
        for pod in pods
        if _runs(pod) and (at_s := _suspect_at_s(pod, heard, hearing_since_s, timing)) is not None and now_s >= at_s
    )


def next_look_s(
    pods: Iterable[Pod], heard: AttemptReports | None, *, hearing_since_s: float, now_s: float, timing: Timing
) -> float | None:
    """When to look again, if nothing is heard until then."""
    due = (_suspect_at_s(pod, heard, hearing_since_s, timing) for pod in pods if _runs(pod))
    first_s = min((at_s for at_s in due if at_s is not None), default=None)
    return None if first_s is None else max(first_s, now_s + LOOK_EVERY_S if now_s >= first_s else first_s)


def workers_on_dead_nodes(
    suspected: Iterable[Pod], pulses: Mapping[str, LeaseObservation], timing: Timing
) -> tuple[Pod, ...]:
    """Those whose node's Lease stood still as long as it was looked at; `pulses` is by the node's name."""
    return _quiet(suspected, pulses, timing.node_lease_timeout_s)


def workers_on_doubtful_nodes(
    suspected: Iterable[Pod], pulses: Mapping[str, LeaseObservation], timing: Timing
) -> tuple[Pod, ...]:
    """Once one is dead, those who seem to follow, too: nodes are lost together, and missed one after another."""
    return _quiet(suspected, pulses, timing.node_lease_timeout_s * DOUBTFUL_FRACTION)


def can_continue_without(dead: Collection[Pod], pods: Iterable[Pod], fewest: int) -> bool:
    """An elastic training does, as long as enough are left; but they meet at worker 0."""
    left = sum(_runs(pod) for pod in pods) - len(dead)
    return 0 < fewest <= left and all(index_of(pod) != 0 for pod in dead)


def overdue(pods: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """Those that were to be gone by now: a kubelet that lives ends them in time."""
    return tuple(pod for pod in pods if _stays(pod) and now >= overdue_at(pod))


def overdue_at(pod: Pod) -> datetime:
    return parse_time(pod.metadata.deletion_timestamp) + timedelta(seconds=OVERDUE_S)


def next_overdue(pods: Iterable[Pod], now: datetime) -> datetime | None:
    """When to look at them, or to look again."""
    due = (max(overdue_at(pod), now + timedelta(seconds=LOOK_EVERY_S)) for pod in pods if _stays(pod))
    return min(due, default=None)


def node_failure(pod: Pod, cause: FailureClass, timing: Timing) -> WorkerFailure:
    message = (
        f"{worker_text(pod)} was lost: it has not reported for more than {timing.report_timeout_s:g} s, "
        f"and its node has not renewed its Lease for {timing.node_lease_timeout_s:g} s"
    )
    return WorkerFailure(cause=cause, message=message)


def _quiet(suspected: Iterable[Pod], pulses: Mapping[str, LeaseObservation], for_s: float) -> tuple[Pod, ...]:
    return tuple(
        pod
        for pod in suspected
        if (pulse := pulses.get(pod.spec.node_name)) is not None and pulse.looked_s - pulse.since_s >= for_s
    )


def _stays(pod: Pod) -> bool:
    return pod.is_terminating and not pod.is_finished and bool(pod.spec.node_name)


def _runs(pod: Pod) -> bool:
    return pod.status.phase == "Running" and not pod.is_terminating and bool(pod.spec.node_name)


def _suspect_at_s(pod: Pod, heard: AttemptReports | None, hearing_since_s: float, timing: Timing) -> float | None:
    if heard is None:
        return None
    voice = heard.workers.get(index_of(pod))
    return max(voice.heard_s if voice is not None else heard.first_s, hearing_since_s) + timing.report_timeout_s
