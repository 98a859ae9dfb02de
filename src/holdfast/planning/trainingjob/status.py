"""The status of a TrainingJob, from what is seen of it and the course that is taken."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import structs

from holdfast.api.builtin import Job, Pod
from holdfast.api.meta import Condition
from holdfast.api.trainingjob import AllocatedResources, TrainingJobStatus, Workers
from holdfast.planning import conditions
from holdfast.planning.times import next_try, span, timestamp
from holdfast.planning.trainingjob.classes import Class
from holdfast.planning.trainingjob.course import Again, Course, Finding, Finish, Go, Hold, Over, Park, why_not_all
from holdfast.planning.trainingjob.deadline import shown_duration, suspended_for_s
from holdfast.planning.trainingjob.observed import FINISHED, SPEC_CHANGED, Observed
from holdfast.planning.trainingjob.progress import total_epochs
from holdfast.planning.trainingjob.restart import counted

CHILDREN_MADE = Finding("", "ChildrenMade", "the workers' Job, Services and ConfigMap were made")
# Which condition is true in which state; Created is told apart, it stays true once the workers were made.
CONDITION_OF = {
    "Running": "Running",
    "Suspended": "Suspended",
    "Restarting": "Restarting",
    "Completed": "Succeeded",
    "Failed": "Failed",
}
# Of a message, in the schema.
LONGEST = 32768
REASON_OF: dict[Class, str] = {
    "preemption": "Preempted",
    "infrastructure": "InfrastructureLost",
    "outOfMemory": "OutOfMemory",
    "hang": "NoProgress",
    "application": "WorkerFailed",
}


def next_status(observed: Observed, course: Course, now: datetime) -> TrainingJobStatus:
    """The status that the job should show; equal to the one that it shows when nothing has changed."""
    old = observed.status
    finding = find(observed, course, now)
    if finding is None:
        return old if isinstance(course, Hold) else structs.replace(old, observed_generation=_generation(observed))
    finding = _told(observed, course, finding)
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
        next_retry_time=timestamp(course.retry_at) if isinstance(course, Go) and course.retry_at else None,
        conditions=conditions.merge(old.conditions, _conditions(observed, finding, now)),
    )
    if old.state == "Suspended" and finding.state != "Suspended":
        status = structs.replace(status, suspended_seconds=old.suspended_seconds + round(suspended_for_s(old, now)))
    match course:
        case Again():
            status = _with_restart(status, course)
        case Hold():
            status = structs.replace(status, next_retry_time=old.next_retry_time)
    return _with_times(status, observed.workers, finding, now)


def find(observed: Observed, course: Course, now: datetime) -> Finding | None:
    """Where the job stands; None when there is nothing new to say."""
    match course:
        case Over():
            return None
        case Finish(finding):
            return finding
        case Again(retry):
            return _again(course, now) if retry is not None else _changed(observed)
        case Hold(finding) if not observed.obstacle:
            return finding
        case Park():
            return _suspended(observed)
        case Go(finding=Finding() as finding) if not observed.obstacle:
            return finding
    return _made(observed)


def why(status: TrainingJobStatus) -> str:
    """The word that stands for the job's state; Running is the condition that is always there."""
    return next((each.reason for each in status.conditions if each.type == "Running"), "")


def _generation(observed: Observed) -> int:
    return observed.job.metadata.generation


def _told(observed: Observed, course: Course, finding: Finding) -> Finding:
    """As it fits into a status; and why the job restarts stays its reason while it waits for this and that."""
    because = observed.restarting_because if finding.state == "Restarting" and not isinstance(course, Again) else ""
    return Finding(finding.state, because or finding.reason, finding.message[:LONGEST])


def _again(course: Again, now: datetime) -> Finding:
    retry = course.retry
    assert retry is not None
    when = next_try(retry.at, (retry.at - now).total_seconds()) if retry.at else "starting again at once"
    return Finding("Restarting", REASON_OF[retry.loss.cause], f"{retry.loss.message}; {when}")


def _changed(observed: Observed) -> Finding:
    if observed.job.spec.suspend:
        return Finding("Suspended", SPEC_CHANGED, "the spec has changed: the next start is a new attempt")
    return Finding("Restarting", SPEC_CHANGED, "stopping the workers: the spec has changed")


def _made(observed: Observed) -> Finding:
    """The children are there, or on their way."""
    if observed.obstacle:
        return Finding(observed.state or "Pending", "ChildNotMade", observed.obstacle)
    workers = observed.workers
    if workers is None or workers.metadata.deletion_timestamp:
        state = observed.state if observed.state in ("Restarting", "Suspended") else "Pending"
        return Finding(state, "CreatingWorkers", "making the workers")
    if observed.job.spec.suspend:
        return _suspended(observed)
    if workers.spec.suspend and observed.queued:
        state = "Restarting" if observed.status.restart_count else "Pending"
        return Finding(state, "Queued", "waiting in its queue: Kueue lets the job start when its quota allows")
    return _under_way(observed, workers)


def _suspended(observed: Observed) -> Finding:
    stopping = sum(not pod.has_ended for pod in (*observed.pods, *observed.leftovers))
    if stopping:
        return Finding("Suspended", "StoppingWorkers", f"waiting for {stopping} workers to stop")
    return Finding("Suspended", "Suspended", "spec.suspend is true; set it to false to go on")


def _under_way(observed: Observed, workers: Job) -> Finding:
    desired = observed.job.spec.num_workers
    started = workers.status.ready + _succeeded(workers)
    if started >= desired or (observed.state == "Running" and _goes_on(observed)):
        return Finding("Running", "WorkersReady", "every worker is running or has succeeded")
    message = why_not_all(observed, desired - started)
    if observed.state in ("Running", "Restarting"):
        return Finding("Restarting", "WorkersLost", message)
    return Finding("Initializing", "WorkersStarting", message)


def _goes_on(observed: Observed) -> bool:
    """One that is ending is not ready any more and not counted yet: not lost. An elastic gang may really miss some."""
    return not observed.elastic or _present(observed.pods) >= observed.job.spec.num_workers


def _present(pods: Iterable[Pod]) -> int:
    return sum(pod.status.phase in ("Running", "Succeeded") and not pod.is_terminating for pod in pods)


def _succeeded(workers: Job) -> int:
    # A pod that has just ended is in neither count for a moment; without these a job would seem to lose workers.
    return workers.status.succeeded + len(workers.status.uncounted_terminated_pods.succeeded)


def _workers(observed: Observed, finding: Finding) -> Workers:
    desired = observed.job.spec.num_workers
    if observed.workers is None:
        return Workers(desired=desired)
    counted = observed.workers.status
    # What still runs when a job ends is stopped, and nobody looks again.
    active = 0 if finding.state in FINISHED else counted.active
    return Workers(desired=desired, active=active, succeeded=counted.succeeded, failed=counted.failed)


def _resources(observed: Observed, finding: Finding) -> AllocatedResources:
    held = 0 if finding.state in FINISHED else len(observed.bound)
    return AllocatedResources(workers=held, gpus=held * observed.gpus_per_worker)


def _with_restart(status: TrainingJobStatus, course: Again) -> TrainingJobStatus:
    retry = course.retry
    status = structs.replace(status, restart_count=status.restart_count + 1)
    if retry is None:
        return structs.replace(status, quick_restarts=0)
    return structs.replace(
        status,
        restarts=counted(status.restarts, retry.loss.cause),
        failure_reason=retry.loss.message,
        quick_restarts=retry.in_a_row,
        next_retry_time=timestamp(retry.at) if retry.at else None,
    )


def _conditions(observed: Observed, finding: Finding, now: datetime) -> list[Condition]:
    old = observed.status.conditions
    known = {condition.type for condition in old}
    holding = CONDITION_OF.get(finding.state)

    def condition(kind: str, true: bool, told: Finding) -> Condition:
        return Condition(
            type=kind,
            status="True" if true else "False",
            reason=told.reason,
            message=told.message,
            last_transition_time=timestamp(now),
            observed_generation=_generation(observed),
        )

    created = observed.workers is not None or conditions.holds(old, "Created")
    shown = (kind for kind in CONDITION_OF.values() if kind in (holding, "Running") or kind in known)
    return [
        condition("Created", created, CHILDREN_MADE if created else finding),
        *(condition(kind, kind == holding, finding) for kind in shown),
    ]


def _with_times(status: TrainingJobStatus, workers: Job | None, finding: Finding, now: datetime) -> TrainingJobStatus:
    start = status.start_time or (workers.status.start_time if workers else None) or None
    if finding.state not in FINISHED:
        # Only a running job is woken up for it: what another shows stays until it runs.
        duration = shown_duration(start, now) if start and finding.state == "Running" else status.duration
        return structs.replace(status, start_time=start, duration=duration)
    end = (workers.status.completion_time if workers and finding.state == "Completed" else "") or timestamp(now)
    return structs.replace(
        status,
        start_time=start,
        completion_time=end,
        duration=span(start or end, end),
        failure_reason=finding.message if finding.state == "Failed" else None,
    )
