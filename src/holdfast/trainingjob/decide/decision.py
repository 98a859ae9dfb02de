"""What is to be done about a TrainingJob next, given what is seen of it: one course of several."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from holdfast.api.core.objects import Pod
from holdfast.pods.failure import WorkerFailure, index_of, worker_text
from holdfast.pods.start_problems import why_waiting
from holdfast.times import format_duration, format_time, next_try, parse_time
from holdfast.trainingjob.decide.failure import find_failure
from holdfast.trainingjob.decide.old_pods import blocking_pods, give_up_times, jobs_that_may_create_pods, unreachable
from holdfast.trainingjob.decide.restart import (
    GiveUp,
    Retry,
    backoff_s,
    deadline,
    expiry,
    next_duration,
    restart_or_give_up,
    retry_time,
)
from holdfast.trainingjob.decide.snapshot import Observed, Timing
from holdfast.trainingjob.decide.success import final_save_deadline, success_if_reached

# A sentence names so many workers.
NAMED = 3


class StateReason(Struct, frozen=True):
    """Where the job stands: its state, one word why, and a sentence for people."""

    state: str
    reason: str
    message: str


class CleanUp(Struct, frozen=True):
    """It has ended: nothing of it may run on."""


class Finish(Struct, frozen=True):
    """It ends now."""

    finding: StateReason


class StartNewAttempt(Struct, frozen=True):
    """A new attempt; its number is in status before anything of the old one is touched, so that a crash is seen."""

    retry: Retry | None
    """None: not after a failure, but for a changed spec."""


class RecreateJob(Struct, frozen=True):
    """The attempt was made for another spec and has never started: its Job is made anew, without being counted."""


class Wait(Struct, frozen=True):
    """Nothing is made yet. Without a finding not even the status changes."""

    finding: StateReason | None


class EnsureJob(Struct, frozen=True):
    """The attempt's objects are made and kept as they should be."""

    suspended: bool
    """Whether the Job is held back; of no account where Kueue decides that."""
    finding: StateReason | None = None
    """Known beforehand; otherwise it follows from what the workers do."""
    retry_at: datetime | None = None


class DeleteQueuedJob(Struct, frozen=True):
    """Suspended, and the Job's own suspend is Kueue's: the Job goes, and one that is made later queues again."""


Action = CleanUp | Finish | StartNewAttempt | RecreateJob | Wait | EnsureJob | DeleteQueuedJob


def decide(observed: Observed, now: datetime, timing: Timing) -> Action:
    if observed.finished:
        return CleanUp()
    ended = _end(observed, now, timing)
    if ended is not None:
        return Finish(ended)
    return _replace_attempt(observed, now, timing) or _wait(observed, now, timing) or _start(observed, now, timing)


def _end(observed: Observed, now: datetime, timing: Timing) -> StateReason | None:
    if observed.rejected_reason:
        return StateReason("Failed", "Refused", observed.rejected_reason)
    due = deadline(observed.job, now)
    is_late = due is not None and now >= due and not observed.job.spec.suspend
    failed = observed.current_job.condition("Failed") if observed.elastic and observed.current_job is not None else None
    # No other checkpoint is going to come then.
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
        loss = find_failure(observed)
        message = f"{loss.message} ({failed.message})" if loss is not None else failed.message
        return StateReason("Failed", failed.reason or "WorkersFailed", message)
    return None


def _replace_attempt(observed: Observed, now: datetime, timing: Timing) -> Action | None:
    """A broken attempt and an outdated one are replaced."""
    loss = _find_failure(observed)
    if loss is None and _cannot_resume(observed, now, timing):
        loss = WorkerFailure(cause="infrastructure", message="a worker that was suspended is lost with its node")
    if loss is not None:
        match restart_or_give_up(loss, observed.job, observed.current_job, now, timing):
            case GiveUp(reason, message):
                return Finish(StateReason("Failed", reason, message))
            case retry:
                return StartNewAttempt(retry)
    if observed.spec_changed:
        return StartNewAttempt(None) if observed.status.start_time else RecreateJob()
    return RecreateJob() if observed.avoids_wrong_nodes else None


def _find_failure(observed: Observed) -> WorkerFailure | None:
    """What is seen explains more than what is not heard. An elastic launcher makes up for the workers that it loses,
    unless none of them could ever start."""
    loss = find_failure(observed)
    if loss is not None and observed.elastic and not loss.permanent:
        loss = None
    return loss or observed.liveness_failure


def _cannot_resume(observed: Observed, now: datetime, timing: Timing) -> bool:
    """The Job waits for its old pods before it makes new ones: for one on a dead node it would wait for ever."""
    return _is_resuming(observed) and any(
        not pod.is_finished and pod not in blocking_pods(observed, now, timing, observed.pods) for pod in observed.pods
    )


def _is_resuming(observed: Observed) -> bool:
    """The Job was suspended, or is being deleted to be made anew under the same name."""
    job = observed.current_job
    return job is not None and not observed.started and not observed.job.spec.suspend


def _wait(observed: Observed, now: datetime, timing: Timing) -> Action | None:
    """For the workers of before, for a job with the same store, and for the time of the next try."""
    if observed.started or observed.job.spec.suspend or _is_backing_off(observed, now):
        return None  # it goes on, or starts nobody
    stopping = blocking_pods(observed, now, timing, observed.running_old_pods)
    if _is_resuming(observed):
        stopping += tuple(pod for pod in observed.pods if not pod.is_finished)
    if stopping or jobs_that_may_create_pods(observed, now, timing):
        return Wait(_waiting(observed, "StoppingWorkers", _why_stopping(observed, stopping)))
    if observed.store_in_use:
        return Wait(_waiting(observed, "StoreInUse", observed.store_in_use))
    due = retry_time(observed.job)
    if due is not None and now < due and observed.state == "Restarting":
        # As it was said when the attempt broke: a message that counts down would be written again and again.
        again = next_try(due, backoff_s(observed.status.quick_restarts, timing))
        message = f"{observed.status.failure_reason}; {again}" if observed.status.failure_reason else again
        return Wait(_waiting(observed, "BackingOff", message))
    return None


def _why_stopping(observed: Observed, stopping: tuple[Pod, ...]) -> str:
    """Why it restarts says more than that the others stop, which takes seconds; who can't be reached takes longer."""
    lost = unreachable(stopping, observed.nodes)
    if lost:
        first = sorted(lost, key=index_of)[:NAMED]
        others = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        who = ", ".join(map(worker_text, first)) + others
        return f"{who} can't be reached: waiting a while in case it is still running"
    restarting = observed.state == "Restarting" and observed.status.message
    return restarting or f"waiting for {_named(stopping)} to stop"


def _named(stopping: tuple[Pod, ...]) -> str:
    """Pods that are still there, by name; none when a Job of an earlier attempt may still make one."""
    names = sorted(pod.metadata.name for pod in stopping)
    if not names:
        return "the Job of an earlier attempt"
    others = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"pod{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{others}"


def _start(observed: Observed, now: datetime, timing: Timing) -> Action:
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


def _is_backing_off(observed: Observed, now: datetime) -> bool:
    """It made room for others; its message says why until its time has come."""
    due = retry_time(observed.job)
    return observed.state == "Pending" and due is not None and now < due


def _release_partial_gang(observed: Observed, now: datetime, timing: Timing) -> EnsureJob | None:
    """A gang that got its turn and not all its nodes must not hold some of them for ever."""
    due = bind_deadline(observed, timing)
    if due is None or now < due:
        return None
    why = why_not_all_started(observed, observed.job.spec.num_workers - len(observed.bound))
    within = format_duration(format_time(now), format_time(now + timedelta(seconds=timing.bind_timeout_s)))
    message = f"not all workers found a node within {within}, so the others made room again; {why}"
    return EnsureJob(True, StateReason("Pending", "NotBound", message), now + timedelta(seconds=timing.bind_timeout_s))


def why_not_all_started(observed: Observed, missing: int) -> str:
    desired = observed.job.spec.num_workers
    why = why_waiting(observed.pods, missing, desired, observed.pod_events, observed.job_event)
    if observed.claim and "persistentvolumeclaim" in why.lower():
        # The scheduler says that a claim is in the way, and neither which nor why.
        return f"{why.rstrip('.')}; see what kubectl describe pvc {observed.claim} says"
    return why


def bind_deadline(observed: Observed, timing: Timing) -> datetime | None:
    """Until when an attempt that has started must have all its nodes; None once it has them."""
    job = observed.current_job
    if job is None or not observed.started or observed.elastic or not job.status.start_time:
        return None  # an elastic training uses the nodes that it has
    placed = sum(bool(pod.spec.node_name) or pod.is_finished for pod in observed.pods)
    if placed >= observed.job.spec.num_workers or observed.state == "Running":
        return None
    return parse_time(job.status.start_time) + timedelta(seconds=timing.bind_timeout_s)


def _waiting(observed: Observed, reason: str, message: str) -> StateReason:
    """A restarting job stays so until it runs; a suspended one until its old workers are gone."""
    state = "Restarting" if observed.state == "Restarting" or observed.status.restart_count else "Pending"
    if reason == "StoppingWorkers" and observed.state == "Suspended":
        state = "Suspended"
    return StateReason(state, reason, message)


# When a TrainingJob has to be looked at again although nothing happens.


def requeue_at(observed: Observed, now: datetime, timing: Timing) -> datetime | None:
    """The next moment at which a decision may differ; None when only news can change it."""
    return min((due for due in _moments(observed, now, timing) if due > now), default=None)


def _moments(observed: Observed, now: datetime, timing: Timing) -> Iterator[datetime]:
    if observed.finished:
        due = expiry(observed.job)
        if due is not None:
            yield due
        return
    # The deadline of a suspended job recedes with every moment: it is asked for again when the job goes on.
    running_out = None if observed.state == "Suspended" else deadline(observed.job, now)
    for due in (
        running_out,
        retry_time(observed.job),
        bind_deadline(observed, timing),
        final_save_deadline(observed.job, timing),
    ):
        if due is not None:
            yield due
    if observed.state == "Running" and observed.status.start_time:
        yield next_duration(observed.status.start_time, now)
    yield from give_up_times(observed, timing)


def explain_after(observed: Observed, timing: Timing) -> datetime | None:
    """From when on workers that have not started are asked why."""
    job = observed.current_job
    if job is None or observed.finished or not observed.started or not job.status.start_time:
        return None
    if job.status.ready + job.status.succeeded >= observed.job.spec.num_workers:
        return None
    return parse_time(job.status.start_time) + timedelta(seconds=timing.explain_s)
