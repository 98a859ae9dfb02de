"""Detects hangs (workers alive without progress) from reports, and pods that stay beyond their grace.

Only received reports count: while no reports arrive, the operator can't know that there is no progress. Times are
seconds of the operator's own clock. Receiving starts when the operator becomes leader and its report server answers.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.core.objects import Pod
from holdfast.api.reports import ProgressReport, WorkerReport
from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.failure import WorkerFailure, index_of
from holdfast.times import parse_time

# The reports that this operator has received from an attempt's workers, by its own clock. They live in memory only.

ProgressPoint: TypeAlias = tuple[int, int]


class WorkerReports(Struct, frozen=True):
    """What is known from the reports of one worker."""

    received_s: float
    point: ProgressPoint | None = None
    """The position of the worker's last reported progress."""
    saves_on_notice: bool = False
    """The worker's training saves a checkpoint on notice."""
    gpu_percent: float | None = None
    """The utilization of the worker's GPUs; None while unknown."""


class AttemptReports(Struct, frozen=True):
    attempt: int
    first_s: float
    progress_s: float
    """When progress was last reported; the time of the first report before any progress."""
    workers: Mapping[int, WorkerReports] = {}
    """By worker index."""


def record_report(before: AttemptReports | None, batch: WorkerReport, now_s: float) -> AttemptReports:
    """Adds a report. A report that repeats the last position proves that the worker is alive, but is no progress."""
    old = before if before is not None and before.attempt == batch.attempt else None
    worker = old.workers.get(batch.index) if old is not None else None
    point = _point(batch.progress[-1]) if batch.progress else None
    is_progress = point is not None and (worker is None or point != worker.point)
    new = WorkerReports(
        now_s,
        point or (worker.point if worker is not None else None),
        batch.saves_on_notice,
        batch.gpu_utilization_percent,
    )
    return AttemptReports(
        attempt=batch.attempt,
        first_s=old.first_s if old is not None else now_s,
        progress_s=now_s if is_progress or old is None else old.progress_s,
        workers={**(old.workers if old is not None else {}), batch.index: new},
    )


def gpu_utilization_percent(reports: AttemptReports | None, now_s: float, silent_s: float) -> float | None:
    """The mean over the workers that report it and are not silent; None without such workers."""
    workers = reports.workers.values() if reports is not None else ()
    known = [
        worker.gpu_percent
        for worker in workers
        if worker.gpu_percent is not None and now_s - worker.received_s < silent_s
    ]
    return round(sum(known) / len(known), 1) if known else None


def _point(entry: ProgressReport) -> ProgressPoint:
    """Epochs done and steps beyond them. It may go back: a suspended training resumes from a checkpoint."""
    return (entry.epoch, 0) if entry.step is None else (entry.epoch - 1, entry.step)


# A hang that is due is looked for so often.
HANG_CHECK_EVERY_S = 4.0


def find_hang(
    job: TrainingJob,
    reports: AttemptReports | None,
    running: Collection[int],
    *,
    running_since_s: float,
    receiving_since_s: float,
) -> WorkerFailure | None:
    """`running` are the indexes of the workers that have not ended; all of them run since `running_since_s`."""
    limit_s = job.spec.progress_deadline_seconds
    if (
        limit_s is None
        or reports is None
        or not _is_current_attempt(job, reports)
        or not set(running) <= reports.workers.keys()
    ):
        return None
    if not running or job.status is None or job.status.state != "Running":
        return None
    received_s = min(reports.workers[index].received_s for index in running)
    silent_s = received_s - _since_s(reports, running_since_s, receiving_since_s)
    if silent_s < limit_s:
        return None
    epoch = f", after epoch {job.status.current_epoch}" if job.status.current_epoch is not None else ""
    message = f"the workers live and no progress was reported for {silent_s:.0f} s{epoch}"
    return WorkerFailure(cause="hang", message=f"{message} (progressDeadlineSeconds is {limit_s})")


def hang_due_s(
    job: TrainingJob, reports: AttemptReports | None, *, running_since_s: float, receiving_since_s: float
) -> float | None:
    """When to check for a hang again, if no report arrives until then."""
    limit_s = job.spec.progress_deadline_seconds
    if limit_s is None or reports is None or not _is_current_attempt(job, reports):
        return None
    return _since_s(reports, running_since_s, receiving_since_s) + limit_s


def _since_s(reports: AttemptReports, running_since_s: float, receiving_since_s: float) -> float:
    return max(reports.progress_s, running_since_s, receiving_since_s)


def _is_current_attempt(job: TrainingJob, reports: AttemptReports) -> bool:
    return job.status is not None and reports.attempt == job.status.restart_count


# Who is left, and who stays too long.

# How long after a pod's grace period its node is checked.
OVERDUE_S, OVERDUE_CHECK_EVERY_S = 3.0, 4.0


def can_continue_without(dead: Collection[Pod], pods: Iterable[Pod], min_workers: int) -> bool:
    """An elastic training continues while enough workers are left, but needs worker 0 as the rendezvous."""
    left = sum(is_running(pod) for pod in pods) - len(dead)
    return 0 < min_workers <= left and all(index_of(pod) != 0 for pod in dead)


def is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running" and not pod.is_terminating and bool(pod.spec.node_name)


def overdue(pods: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """Pods that should be gone by now: a healthy kubelet stops pods in time."""
    return tuple(pod for pod in pods if _is_still_terminating(pod) and now >= overdue_at(pod))


def overdue_at(pod: Pod) -> datetime:
    return parse_time(pod.metadata.deletion_timestamp) + timedelta(seconds=OVERDUE_S)


def next_overdue(pods: Iterable[Pod], now: datetime) -> datetime | None:
    """When to check terminating pods next."""
    due = (
        max(overdue_at(pod), now + timedelta(seconds=OVERDUE_CHECK_EVERY_S))
        for pod in pods
        if _is_still_terminating(pod)
    )
    return min(due, default=None)


def _is_still_terminating(pod: Pod) -> bool:
    return pod.is_terminating and not pod.is_finished and bool(pod.spec.node_name)
