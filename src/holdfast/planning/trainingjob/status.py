"""The status of a TrainingJob, from what is seen of it."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct, structs

from holdfast.api.builtin import Job, Pod
from holdfast.api.meta import Condition
from holdfast.api.trainingjob import TrainingJobStatus, Workers
from holdfast.planning import conditions
from holdfast.planning.times import span, timestamp
from holdfast.planning.trainingjob.failure import failure_reason
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.waiting import why_waiting


class Finding(Struct, frozen=True):
    """Where the job stands: its state, one word why, and a sentence for people."""

    state: str
    reason: str
    message: str


CHILDREN_MADE = Finding("", "ChildrenMade", "the workers, their Services and their ConfigMap were made")
# Which condition is true in which state; Created is told apart, it stays true once the workers were made.
CONDITION_OF = {
    "Running": "Running",
    "Suspended": "Suspended",
    "Restarting": "Restarting",
    "Completed": "Succeeded",
    "Failed": "Failed",
}


def next_status(observed: Observed, now: datetime) -> TrainingJobStatus:
    """The status that the job should show; equal to the one that it shows when nothing has changed."""
    old = observed.job.status or TrainingJobStatus()
    if observed.finished:
        return old
    finding = find(observed)
    status = structs.replace(
        old,
        observed_generation=observed.job.metadata.generation,
        state=finding.state,
        message=finding.message,
        workers=_workers(observed),
        selector=f"training-job={observed.job.metadata.name}",
        total_epochs=observed.job.spec.hyperparameters.epochs if observed.job.spec.hyperparameters else None,
        restart_count=old.restart_count + 1 if _restarts(observed) else old.restart_count,
        conditions=conditions.merge(old.conditions, _conditions(observed, finding, now)),
    )
    return _with_times(status, observed.workers, finding, now)


def find(observed: Observed) -> Finding:
    """One rule after the other; the first that applies names the state."""
    if observed.refusal:
        return Finding("Failed", "Refused", observed.refusal)
    workers = observed.workers
    if workers is not None:
        if workers.condition("Complete"):
            return Finding("Completed", "WorkersSucceeded", "every worker succeeded")
        if failed := workers.condition("Failed"):
            return Finding("Failed", failed.reason or "WorkersFailed", failure_reason(failed, observed.pods))
        if failing := workers.condition("FailureTarget"):
            message = f"stopping the workers: {failing.message or failing.reason}"
            return Finding(observed.state or "Initializing", failing.reason or "WorkersFailed", message)
    if observed.obstacle:
        return Finding(observed.state or "Pending", "ChildNotMade", observed.obstacle)
    if observed.outdated:
        return Finding("Restarting", "SpecChanged", "stopping the workers: the spec has changed")
    if observed.earlier:
        names = ", ".join(job.metadata.name for job in observed.earlier)
        return Finding("Restarting", "StoppingWorkers", f"waiting for the workers of {names} to stop")
    if workers is None:
        return Finding("Pending", "CreatingWorkers", "making the workers")
    if observed.job.spec.suspend:
        return _suspended(workers)
    return _under_way(observed, workers)


def _suspended(workers: Job) -> Finding:
    stopping = workers.status.active + workers.status.terminating
    if stopping:
        return Finding("Suspended", "StoppingWorkers", f"waiting for {stopping} workers to stop")
    return Finding("Suspended", "Suspended", "spec.suspend is true; set it to false to go on")


def _under_way(observed: Observed, workers: Job) -> Finding:
    desired = observed.job.spec.num_workers
    started = workers.status.ready + _succeeded(workers)
    if started >= desired or (observed.state == "Running" and _present(observed.pods) >= desired):
        return Finding("Running", "WorkersReady", "every worker is running or has succeeded")
    message = why_waiting(observed.pods, desired - started, desired)
    if observed.state in ("Running", "Restarting") or workers.status.failed:
        return Finding("Restarting", "WorkersLost", message)
    return Finding("Initializing", "WorkersStarting", message)


def _present(pods: Iterable[Pod]) -> int:
    """Workers that run or have succeeded. One that is ending is not ready any more and not counted yet: not lost."""
    return sum(pod.status.phase in ("Running", "Succeeded") and not pod.metadata.deletion_timestamp for pod in pods)


def _restarts(observed: Observed) -> bool:
    """A new attempt is a number in status before it is anything else: a crash here loses nothing."""
    return observed.outdated and not observed.obstacle and find(observed).reason == "SpecChanged"


def _succeeded(workers: Job) -> int:
    # A pod that has just ended is in neither count for a moment; without these a job would seem to lose workers.
    return workers.status.succeeded + len(workers.status.uncounted_terminated_pods.succeeded)


def _workers(observed: Observed) -> Workers:
    desired = observed.job.spec.num_workers
    if observed.workers is None:
        return Workers(desired=desired)
    counted = observed.workers.status
    return Workers(desired=desired, active=counted.active, succeeded=counted.succeeded, failed=counted.failed)


def _conditions(observed: Observed, finding: Finding, now: datetime) -> list[Condition]:
    old = observed.job.status.conditions if observed.job.status else ()
    known = {condition.type for condition in old}
    holding = CONDITION_OF.get(finding.state)

    def condition(kind: str, true: bool, told: Finding) -> Condition:
        return Condition(
            type=kind,
            status="True" if true else "False",
            reason=told.reason,
            message=told.message,
            last_transition_time=timestamp(now),
            observed_generation=observed.job.metadata.generation,
        )

    created = observed.workers is not None or conditions.holds(old, "Created")
    shown = (kind for kind in CONDITION_OF.values() if kind in (holding, "Running") or kind in known)
    return [
        condition("Created", created, CHILDREN_MADE if created else finding),
        *(condition(kind, kind == holding, finding) for kind in shown),
    ]


def _with_times(status: TrainingJobStatus, workers: Job | None, finding: Finding, now: datetime) -> TrainingJobStatus:
    start = status.start_time or (workers.status.start_time if workers else None) or None
    if finding.state not in ("Completed", "Failed"):
        return structs.replace(status, start_time=start)
    end = _end(workers) or timestamp(now)
    return structs.replace(
        status,
        start_time=start,
        completion_time=end,
        duration=span(start or end, end),
        failure_reason=finding.message if finding.state == "Failed" else None,
    )


def _end(workers: Job | None) -> str:
    """When the Job ended; a failed one has no completion time, but its condition has."""
    failed = workers.condition("Failed") if workers else None
    return (workers.status.completion_time if workers else "") or (failed.last_transition_time if failed else "")
