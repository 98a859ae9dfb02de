"""The status of a TrainingJob, from its snapshot and the action that `decide` chose."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import structs

from holdfast.api import meta as conditions
from holdfast.api.core.objects import Job, Pod
from holdfast.api.meta import Condition
from holdfast.api.trainingjob_status import AllocatedResources, TrainingJobStatus, WorkerCounts
from holdfast.decisions import MAX_MESSAGE, CleanUp, Finish, StateReason, Wait
from holdfast.pods.failure import FailureClass
from holdfast.pods.start_problems import is_ordinary
from holdfast.times import format_duration, format_time, next_attempt
from holdfast.trainingjob.decide.decision import (
    Action,
    DeleteQueuedJob,
    EnsureJob,
    StartNewAttempt,
    why_not_all_started,
)
from holdfast.trainingjob.decide.progress import total_epochs
from holdfast.trainingjob.decide.restart import shown_duration, suspended_for_s, with_restart
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES, SPEC_CHANGED, TrainingJobSnapshot

CHILDREN_MADE = StateReason("", "ChildrenMade", "the workers' Job, Services and ConfigMap were made")
# Which condition is true in which state. Created is separate: it stays true once the workers were created.
CONDITION_OF = {
    "Running": "Running",
    "Suspended": "Suspended",
    "Restarting": "Restarting",
    "Completed": "Succeeded",
    "Failed": "Failed",
}
REASON_OF: dict[FailureClass, str] = {
    "preemption": "Preempted",
    "infrastructure": "InfrastructureLost",
    "outOfMemory": "OutOfMemory",
    "hang": "NoProgress",
    "application": "WorkerFailed",
}


def next_status(observed: TrainingJobSnapshot, action: Action, now: datetime) -> TrainingJobStatus:
    """The status that the job should have; equal to the current status when nothing has changed."""
    old = observed.status
    finding = state_reason(observed, action, now)
    if finding is None:
        return old if isinstance(action, Wait) else structs.replace(old, observed_generation=_generation(observed))
    finding = _truncated(observed, action, finding)
    status = structs.replace(
        old,
        observed_generation=_generation(observed),
        state=finding.state,
        message=finding.message,
        workers=_workers(observed, finding),
        resources=_resources(observed, finding),
        selector=f"training-job={observed.job.metadata.name}",
        total_epochs=total_epochs(observed.job.spec, old),
        estimated_completion_time=old.estimated_completion_time if finding.state == "Running" else None,
        next_retry_time=format_time(action.retry_at) if isinstance(action, EnsureJob) and action.retry_at else None,
        conditions=conditions.merge_conditions(old.conditions, _conditions(observed, finding, now)),
    )
    if old.state == "Suspended" and finding.state != "Suspended":
        status = structs.replace(status, suspended_seconds=old.suspended_seconds + round(suspended_for_s(old, now)))
    match action:
        case StartNewAttempt():
            status = _with_restart(status, action)
        case Wait():
            status = structs.replace(status, next_retry_time=old.next_retry_time)
    return _with_times(status, observed.current_job, finding, now)


def differs_in_counts_only(old: TrainingJobStatus, new: TrainingJobStatus) -> bool:
    """Whether the new status only says that another number of workers has been made, has started or has ended.

    What workers that start wait for changes with each of them; it is no more than a count while it is ordinary.
    """
    return _without_counts(old) == _without_counts(new) and old.start_time in (None, new.start_time)


def _without_counts(status: TrainingJobStatus) -> TrainingJobStatus:
    return structs.replace(
        status,
        workers=None,
        resources=None,
        start_time=None,
        message=_without_ordinary_wait(status.message or ""),
        conditions=[structs.replace(each, message=_without_ordinary_wait(each.message)) for each in status.conditions],
    )


def _without_ordinary_wait(message: str) -> str:
    return "" if is_ordinary(message) else message


def state_reason(observed: TrainingJobSnapshot, action: Action, now: datetime) -> StateReason | None:
    """The job's state and its reason; None when the state does not change."""
    match action:
        case CleanUp():
            return None
        case Finish(finding):
            return finding
        case StartNewAttempt(retry):
            return _restarting(action, now) if retry is not None else _spec_changed(observed)
        case Wait(finding) if not observed.blocked_by:
            return finding
        case DeleteQueuedJob():
            return _suspended(observed)
        case EnsureJob(finding=StateReason() as finding) if not observed.blocked_by:
            return finding
    return _children_state(observed)


def _generation(observed: TrainingJobSnapshot) -> int:
    return observed.job.metadata.generation


def _truncated(observed: TrainingJobSnapshot, action: Action, finding: StateReason) -> StateReason:
    """Truncates the message for the status. While a restarting job waits, its reason stays the cause of the restart."""
    because = (
        observed.restart_reason if finding.state == "Restarting" and not isinstance(action, StartNewAttempt) else ""
    )
    return StateReason(finding.state, because or finding.reason, finding.message[:MAX_MESSAGE])


def _restarting(action: StartNewAttempt, now: datetime) -> StateReason:
    retry = action.retry
    assert retry is not None
    when = next_attempt(retry.at, (retry.at - now).total_seconds()) if retry.at else "starting again at once"
    return StateReason("Restarting", REASON_OF[retry.failure.cause], f"{retry.failure.message}; {when}")


def _spec_changed(observed: TrainingJobSnapshot) -> StateReason:
    if observed.job.spec.suspend:
        return StateReason("Suspended", SPEC_CHANGED, "the spec has changed: the next start is a new attempt")
    return StateReason("Restarting", SPEC_CHANGED, "stopping the workers: the spec has changed")


def _children_state(observed: TrainingJobSnapshot) -> StateReason:
    """The state while the children exist or are being created."""
    if observed.blocked_by:
        return StateReason(observed.state or "Pending", "ChildNotMade", observed.blocked_by)
    workers = observed.current_job
    if workers is None or workers.metadata.deletion_timestamp:
        state = observed.state if observed.state in ("Restarting", "Suspended") else "Pending"
        return StateReason(state, "CreatingWorkers", "making the workers")
    if observed.job.spec.suspend:
        return _suspended(observed)
    if workers.spec.suspend and observed.queued:
        state = "Restarting" if observed.status.restart_count else "Pending"
        return StateReason(state, "Queued", "waiting in its queue: Kueue lets the job start when its quota allows")
    return _workers_state(observed, workers)


def _suspended(observed: TrainingJobSnapshot) -> StateReason:
    stopping = sum(not pod.is_finished for pod in (*observed.pods, *observed.running_old_pods))
    if stopping:
        return StateReason("Suspended", "StoppingWorkers", f"waiting for {_count(stopping)} to stop")
    return StateReason("Suspended", "Suspended", "spec.suspend is true; set it to false to go on")


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _workers_state(observed: TrainingJobSnapshot, workers: Job) -> StateReason:
    desired = observed.job.spec.num_workers
    started = workers.status.ready + _succeeded(workers)
    if started >= desired or (observed.state == "Running" and _keeps_running(observed)):
        return StateReason("Running", "WorkersReady", "every worker is running or has succeeded")
    message = why_not_all_started(observed, desired - started)
    if observed.state in ("Running", "Restarting"):
        return StateReason("Restarting", "WorkersLost", message)
    return StateReason("Initializing", "WorkersStarting", message)


def _keeps_running(observed: TrainingJobSnapshot) -> bool:
    """A worker that is ending is neither ready nor counted yet, but not lost. An elastic gang may really lack some."""
    return not observed.elastic or _present(observed.pods) >= observed.job.spec.num_workers


def _present(pods: Iterable[Pod]) -> int:
    return sum(pod.status.phase in ("Running", "Succeeded") and not pod.is_terminating for pod in pods)


def _succeeded(workers: Job) -> int:
    # A pod that has just ended is briefly neither ready nor counted; without the uncounted pods it would seem lost.
    return workers.status.succeeded + len(workers.status.uncounted_terminated_pods.succeeded)


def _workers(observed: TrainingJobSnapshot, finding: StateReason) -> WorkerCounts:
    desired = observed.job.spec.num_workers
    if observed.current_job is None:
        return WorkerCounts(desired=desired)
    counted = observed.current_job.status
    # Workers that still run when the job ends are stopped, and the status is not updated again.
    active = 0 if finding.state in FINISHED_STATES else counted.active
    return WorkerCounts(desired=desired, active=active, succeeded=counted.succeeded, failed=counted.failed)


def _resources(observed: TrainingJobSnapshot, finding: StateReason) -> AllocatedResources:
    held = 0 if finding.state in FINISHED_STATES else len(observed.bound)
    return AllocatedResources(workers=held, gpus=held * observed.gpus_per_worker)


def _with_restart(status: TrainingJobStatus, action: StartNewAttempt) -> TrainingJobStatus:
    retry = action.retry
    status = structs.replace(status, restart_count=status.restart_count + 1)
    if retry is None:
        return structs.replace(status, quick_restarts=0)
    return structs.replace(
        status,
        restarts=with_restart(status.restarts, retry.failure.cause),
        failure_reason=retry.failure.message,
        quick_restarts=retry.consecutive,
        next_retry_time=format_time(retry.at) if retry.at else None,
    )


def _conditions(observed: TrainingJobSnapshot, finding: StateReason, now: datetime) -> list[Condition]:
    old = observed.status.conditions
    known = {condition.type for condition in old}
    holding = CONDITION_OF.get(finding.state)

    def condition(kind: str, true: bool, detail: StateReason) -> Condition:
        return Condition(
            type=kind,
            status="True" if true else "False",
            reason=detail.reason,
            message=detail.message,
            last_transition_time=format_time(now),
            observed_generation=_generation(observed),
        )

    created = observed.current_job is not None or conditions.is_true(old, "Created")
    shown = (kind for kind in CONDITION_OF.values() if kind in (holding, "Running") or kind in known)
    return [
        condition("Created", created, CHILDREN_MADE if created else finding),
        *(condition(kind, kind == holding, finding) for kind in shown),
    ]


def _with_times(
    status: TrainingJobStatus, workers: Job | None, finding: StateReason, now: datetime
) -> TrainingJobStatus:
    start = status.start_time or (workers.status.start_time if workers else None) or None
    if finding.state not in FINISHED_STATES:
        # Only a running job is requeued to update its duration; in other states the shown duration stays.
        duration = shown_duration(start, now) if start and finding.state == "Running" else status.duration
        return structs.replace(status, start_time=start, duration=duration)
    end = (workers.status.completion_time if workers and finding.state == "Completed" else "") or format_time(now)
    return structs.replace(
        status,
        start_time=start,
        completion_time=end,
        duration=format_duration(start or end, end),
        failure_reason=finding.message if finding.state == "Failed" else None,
    )
