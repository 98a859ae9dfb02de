"""The next action for a TrainingJob, decided from a snapshot of its cluster objects."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.core.objects import Pod
from holdfast.decisions import CleanUp, Finish, GiveUp, Retry, StateReason, Wait
from holdfast.pods.failure import WorkerFailure, index_of, worker_text
from holdfast.pods.start_problems import why_waiting
from holdfast.times import format_duration, format_time, next_attempt, parse_time
from holdfast.trainingjob.decide.failure import find_failure
from holdfast.trainingjob.decide.old_pods import blocking_pods, give_up_times, jobs_that_may_create_pods, unreachable
from holdfast.trainingjob.decide.progress import final_save_deadline, success_if_reached
from holdfast.trainingjob.decide.restart import (
    backoff_s,
    deadline,
    expiry,
    next_duration,
    restart_or_give_up,
    retry_time,
)
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot, TrainingJobTiming

# How many workers or pods a message lists by name.
MAX_NAMED = 3


class StartNewAttempt(Struct, frozen=True):
    """Start a new attempt. Status has its number before the old attempt is touched, so that a crash is noticed."""

    retry: Retry | None
    """None when the reason is a changed spec, not a failure."""


class RecreateJob(Struct, frozen=True):
    """The attempt was created for another spec and never started: recreate its Job without counting a restart."""


class EnsureJob(Struct, frozen=True):
    """Create the attempt's objects and reconcile them."""

    suspended: bool
    """Whether the Job is suspended; ignored where Kueue decides that."""
    finding: StateReason | None = None
    """The state, if known beforehand; otherwise it follows from the workers."""
    retry_at: datetime | None = None


class DeleteQueuedJob(Struct, frozen=True):
    """The job is suspended, but Kueue owns the Job's `suspend`: delete the Job; a later Job queues again."""


Action = CleanUp | Finish | StartNewAttempt | RecreateJob | Wait | EnsureJob | DeleteQueuedJob


def decide(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> Action:
    if observed.finished:
        return CleanUp()
    ended = _final_state(observed, now, timing)
    if ended is not None:
        return Finish(ended)
    return _replace_attempt(observed, now, timing) or _wait(observed, now, timing) or _start(observed, now, timing)


def with_due_reports(observed: TrainingJobSnapshot, action: Action) -> TrainingJobSnapshot:
    """Without reports whose write is not due, unless the attempt or the job ends: no later status would take them."""
    if observed.status_without_reports is None or isinstance(action, StartNewAttempt | Finish | CleanUp):
        return observed
    job = structs.replace(observed.job, status=observed.status_without_reports)
    return structs.replace(observed, job=job, reports=(), status_without_reports=None)


def _final_state(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> StateReason | None:
    if observed.rejected_reason:
        return StateReason("Failed", "Refused", observed.rejected_reason)
    due = deadline(observed.job, now)
    is_late = due is not None and now >= due and not observed.job.spec.suspend
    failed = observed.current_job.condition("Failed") if observed.elastic and observed.current_job is not None else None
    # No further checkpoint comes once the job is ending.
    is_ending = observed.succeeded or is_late or failed is not None or _find_failure(observed) is not None
    reached = success_if_reached(observed.job, now, timing, is_ending=is_ending)
    if reached is not None:
        return StateReason("Completed", reached.reason, reached.message)
    if observed.succeeded:
        return StateReason("Completed", "WorkersSucceeded", "every worker succeeded")
    if is_late:
        policy = observed.job.spec.failure_policy
        limit = policy.active_deadline_seconds if policy is not None else None
        message = f"the job was not done within activeDeadlineSeconds ({limit}), counted over all attempts"
        return StateReason("Failed", "DeadlineExceeded", message)
    if failed is not None:
        failure = find_failure(observed)
        message = f"{failure.message} ({failed.message})" if failure is not None else failed.message
        return StateReason("Failed", failed.reason or "WorkersFailed", message)
    return None


def _replace_attempt(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> Action | None:
    """Replaces an attempt that has failed or was created for an older spec."""
    failure = _find_failure(observed)
    if failure is None and _cannot_resume(observed, now, timing):
        failure = WorkerFailure(cause="infrastructure", message="a worker that was suspended is lost with its node")
    if failure is not None:
        match restart_or_give_up(failure, observed.job, observed.current_job, now, timing):
            case GiveUp(reason, message):
                return Finish(StateReason("Failed", reason, message))
            case retry:
                return StartNewAttempt(retry)
    if observed.spec_changed:
        return StartNewAttempt(None) if _has_begun(observed) else RecreateJob()
    return RecreateJob() if observed.avoids_wrong_nodes else None


def _has_begun(observed: TrainingJobSnapshot) -> bool:
    """Whether workers were made, now or before. The Job shows that earlier than the status."""
    job = observed.current_job
    return bool(observed.status.start_time or (observed.started and job is not None and job.status.start_time))


def _find_failure(observed: TrainingJobSnapshot) -> WorkerFailure | None:
    """A failure seen in the pods explains more than missing reports, so it comes first.

    An elastic launcher replaces workers that fail, unless no worker could ever start.
    """
    failure = find_failure(observed)
    if failure is not None and observed.elastic and not failure.permanent:
        failure = None
    return failure or observed.liveness_failure


def _cannot_resume(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> bool:
    """A Job waits for its old pods before it creates new ones: for a pod on a dead node it would wait forever."""
    return _is_resuming(observed) and any(
        not pod.is_finished and pod not in blocking_pods(observed, now, timing, observed.pods) for pod in observed.pods
    )


def _is_resuming(observed: TrainingJobSnapshot) -> bool:
    """The Job was suspended, or is being deleted to be recreated under the same name."""
    job = observed.current_job
    return job is not None and not observed.started and not observed.job.spec.suspend


def _wait(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> Action | None:
    """Waits for old workers, for a job that uses the same checkpoint store, and for the retry time."""
    if observed.started or observed.job.spec.suspend or _is_backing_off(observed, now):
        return None  # the attempt keeps running, or starts no worker
    stopping = blocking_pods(observed, now, timing, observed.running_old_pods)
    if _is_resuming(observed):
        stopping += tuple(pod for pod in observed.pods if not pod.is_finished)
    if stopping or jobs_that_may_create_pods(observed, now, timing):
        return Wait(_waiting(observed, "StoppingWorkers", _why_stopping(observed, stopping)))
    if observed.store_in_use:
        return Wait(_waiting(observed, "StoreInUse", observed.store_in_use))
    due = retry_time(observed.job)
    if due is not None and now < due and observed.state == "Restarting":
        # The same message as when the attempt failed: a countdown would cause a status write each time.
        when = next_attempt(due, backoff_s(observed.status.quick_restarts, timing))
        message = f"{observed.status.failure_reason}; {when}" if observed.status.failure_reason else when
        return Wait(_waiting(observed, "BackingOff", message))
    return None


def _why_stopping(observed: TrainingJobSnapshot, stopping: tuple[Pod, ...]) -> str:
    """The reason for the restart is more useful than the wait for pods to stop, which takes seconds.

    Unreachable pods take longer, so the message names them.
    """
    lost = unreachable(stopping, observed.nodes)
    if lost:
        first = sorted(lost, key=index_of)[:MAX_NAMED]
        others = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
        who = ", ".join(map(worker_text, first)) + others
        return f"{who} can't be reached: waiting a while in case it is still running"
    restarting = observed.state == "Restarting" and observed.status.message
    return restarting or f"waiting for {_pod_names(stopping)} to stop"


def _pod_names(stopping: tuple[Pod, ...]) -> str:
    """The names of the pods that still exist; without pods, the wait is for an old Job that may still create one."""
    names = sorted(pod.metadata.name for pod in stopping)
    if not names:
        return "the Job of an earlier attempt"
    others = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"pod{'s' if len(names) > 1 else ''} {', '.join(names[:MAX_NAMED])}{others}"


def _start(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> Action:
    if observed.job.spec.suspend:
        return DeleteQueuedJob() if observed.queued else EnsureJob(suspended=True)
    if observed.queued:
        return EnsureJob(suspended=True)
    if observed.started:
        return _release_partial_gang(observed, now, timing) or EnsureJob(suspended=False)
    if _is_backing_off(observed, now):
        return EnsureJob(
            True, StateReason("Pending", "NotBound", observed.status.message or ""), retry_time(observed.job)
        )
    if observed.admission is None:
        return Wait(None)
    if observed.admission.admitted:
        return EnsureJob(suspended=False)
    return EnsureJob(True, _waiting(observed, "NoRoom", observed.admission.message))


def _is_backing_off(observed: TrainingJobSnapshot, now: datetime) -> bool:
    """The job released its capacity; its message gives the reason until the retry time."""
    due = retry_time(observed.job)
    return observed.state == "Pending" and due is not None and now < due


def _release_partial_gang(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> EnsureJob | None:
    """An admitted gang of which only some pods are bound must not hold their nodes forever."""
    due = bind_deadline(observed, timing)
    if due is None or now < due:
        return None
    why = why_not_all_started(observed, observed.job.spec.num_workers - len(observed.bound))
    within = format_duration(format_time(now), format_time(now + timedelta(seconds=timing.bind_timeout_s)))
    message = f"not all workers found a node within {within}, so the others made room again; {why}"
    return EnsureJob(True, StateReason("Pending", "NotBound", message), now + timedelta(seconds=timing.bind_timeout_s))


def why_not_all_started(observed: TrainingJobSnapshot, missing: int) -> str:
    desired = observed.job.spec.num_workers
    why = why_waiting(observed.pods, missing, desired, observed.pod_events, observed.job_event)
    if observed.claim and "persistentvolumeclaim" in why.lower():
        # The scheduler reports that a claim is the problem, but neither which claim nor why.
        return f"{why.rstrip('.')}; see what kubectl describe pvc {observed.claim} says"
    return why


def bind_deadline(observed: TrainingJobSnapshot, timing: TrainingJobTiming) -> datetime | None:
    """By when all pods of a started attempt must be bound to nodes; None once they are."""
    job = observed.current_job
    if job is None or not observed.started or observed.elastic or not job.status.start_time:
        return None  # an elastic training runs on the nodes that it has
    bound = sum(bool(pod.spec.node_name) or pod.is_finished for pod in observed.pods)
    if bound >= observed.job.spec.num_workers or observed.state == "Running":
        return None
    return parse_time(job.status.start_time) + timedelta(seconds=timing.bind_timeout_s)


def _waiting(observed: TrainingJobSnapshot, reason: str, message: str) -> StateReason:
    """A job stays Restarting until it runs, and Suspended until its old workers are gone."""
    state = "Restarting" if observed.state == "Restarting" or observed.status.restart_count else "Pending"
    if reason == "StoppingWorkers" and observed.state == "Suspended":
        state = "Suspended"
    return StateReason(state, reason, message)


# When a TrainingJob must be reconciled again although no event arrives.


def requeue_at(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> datetime | None:
    """The next time at which the decision may differ; None when only an event can change it."""
    return min((due for due in _due_times(observed, now, timing) if due > now), default=None)


def _due_times(observed: TrainingJobSnapshot, now: datetime, timing: TrainingJobTiming) -> Iterator[datetime]:
    if observed.finished:
        due = expiry(observed.job)
        if due is not None:
            yield due
        return
    # The deadline of a suspended job moves with the clock: it is computed again when the job resumes.
    active_deadline = None if observed.state == "Suspended" else deadline(observed.job, now)
    for due in (
        active_deadline,
        retry_time(observed.job),
        bind_deadline(observed, timing),
        final_save_deadline(observed.job, timing),
    ):
        if due is not None:
            yield due
    if observed.state == "Running" and observed.status.start_time:
        yield next_duration(observed.status.start_time, now)
    yield from give_up_times(observed, timing)


def explain_after(observed: TrainingJobSnapshot, timing: TrainingJobTiming) -> datetime | None:
    """From when on the events of workers that have not started are read for the reason."""
    job = observed.current_job
    if job is None or observed.finished or not observed.started or not job.status.start_time:
        return None
    if job.status.ready + job.status.succeeded >= observed.job.spec.num_workers:
        return None
    return parse_time(job.status.start_time) + timedelta(seconds=timing.explain_s)
