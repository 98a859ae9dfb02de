"""What is to be done about a TrainingJob next, given what is seen of it: one course of several."""

from datetime import datetime, timedelta

from msgspec import Struct

from holdfast.api.builtin import Pod
from holdfast.planning.times import moment, next_try, span, timestamp
from holdfast.planning.trainingjob.classes import Loss
from holdfast.planning.trainingjob.deadline import deadline, retry_time
from holdfast.planning.trainingjob.leftovers import holding_up, may_come, unreachable
from holdfast.planning.trainingjob.loss import find_loss, index_of, worker
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.restart import GiveUp, Retry, after, wait_s
from holdfast.planning.trainingjob.success import ending
from holdfast.planning.trainingjob.timing import Timing
from holdfast.planning.trainingjob.waiting import why_waiting

# A sentence names so many workers.
NAMED = 3


class Finding(Struct, frozen=True):
    """Where the job stands: its state, one word why, and a sentence for people."""

    state: str
    reason: str
    message: str


class Over(Struct, frozen=True):
    """It has ended: nothing of it may run on."""


class Finish(Struct, frozen=True):
    """It ends now."""

    finding: Finding


class Again(Struct, frozen=True):
    """A new attempt; its number is in status before anything of the old one is touched, so that a crash is seen."""

    retry: Retry | None
    """None: not after a failure, but for a changed spec."""


class Remake(Struct, frozen=True):
    """The attempt was made for another spec and has never started: its Job is made anew, without being counted."""


class Hold(Struct, frozen=True):
    """Nothing is made yet. Without a finding not even the status changes."""

    finding: Finding | None


class Go(Struct, frozen=True):
    """The attempt's objects are made and kept as they should be."""

    suspended: bool
    """Whether the Job is held back; of no account where Kueue decides that."""
    finding: Finding | None = None
    """Known beforehand; otherwise it follows from what the workers do."""
    retry_at: datetime | None = None


class Park(Struct, frozen=True):
    """Suspended, and the Job's own suspend is Kueue's: the Job goes, and one that is made later queues again."""


Course = Over | Finish | Again | Remake | Hold | Go | Park


def decide(observed: Observed, now: datetime, timing: Timing) -> Course:
    if observed.finished:
        return Over()
    ended = _end(observed, now, timing)
    if ended is not None:
        return Finish(ended)
    return _mend(observed, now, timing) or _wait(observed, now, timing) or _start(observed, now, timing)


def _end(observed: Observed, now: datetime, timing: Timing) -> Finding | None:
    if observed.refusal:
        return Finding("Failed", "Refused", observed.refusal)
    due = deadline(observed.job, now)
    is_late = due is not None and now >= due and not observed.job.spec.suspend
    failed = observed.workers.condition("Failed") if observed.elastic and observed.workers is not None else None
    # No other checkpoint is going to come then.
    is_ending = observed.succeeded or is_late or failed is not None or _lost(observed) is not None
    reached = ending(observed.job, now, timing, is_ending=is_ending)
    if reached is not None:
        return Finding("Completed", reached.reason, reached.message)
    if observed.succeeded:
        return Finding("Completed", "WorkersSucceeded", "every worker succeeded")
    if is_late:
        policy = observed.job.spec.failure_policy
        limit = policy.active_deadline_seconds if policy is not None else None
        message = f"the job was not done within activeDeadlineSeconds ({limit}), counted over all attempts"
        return Finding("Failed", "DeadlineExceeded", message)
    if failed is not None:
        loss = find_loss(observed)
        message = f"{loss.message} ({failed.message})" if loss is not None else failed.message
        return Finding("Failed", failed.reason or "WorkersFailed", message)
    return None


def _mend(observed: Observed, now: datetime, timing: Timing) -> Course | None:
    """A broken attempt and an outdated one are replaced."""
    loss = _lost(observed)
    if loss is None and _cannot_resume(observed, now, timing):
        loss = Loss(cause="infrastructure", message="a worker that was suspended is lost with its node")
    if loss is not None:
        match after(loss, observed.job, observed.workers, now, timing):
            case GiveUp(reason, message):
                return Finish(Finding("Failed", reason, message))
            case retry:
                return Again(retry)
    if observed.outdated:
        return Again(None) if observed.status.start_time else Remake()
    return Remake() if observed.misplaced else None


def _lost(observed: Observed) -> Loss | None:
    """What is seen explains more than what is not heard. An elastic launcher makes up for the workers that it loses,
    unless none of them could ever start."""
    loss = find_loss(observed)
    if loss is not None and observed.elastic and not loss.permanent:
        loss = None
    return loss or observed.unheard


def _cannot_resume(observed: Observed, now: datetime, timing: Timing) -> bool:
    """The Job waits for its old pods before it makes new ones: for one on a dead node it would wait for ever."""
    return _is_resuming(observed) and any(
        not pod.has_ended and pod not in holding_up(observed, now, timing, observed.pods) for pod in observed.pods
    )


def _is_resuming(observed: Observed) -> bool:
    """The Job was suspended, or is being deleted to be made anew under the same name."""
    job = observed.workers
    return job is not None and not observed.started and not observed.job.spec.suspend


def _wait(observed: Observed, now: datetime, timing: Timing) -> Course | None:
    """For the workers of before, for a job with the same store, and for the time of the next try."""
    if observed.started or observed.job.spec.suspend or _is_held_off(observed, now):
        return None  # it goes on, or starts nobody
    stopping = holding_up(observed, now, timing, observed.leftovers)
    if _is_resuming(observed):
        stopping += tuple(pod for pod in observed.pods if not pod.has_ended)
    if stopping or may_come(observed, now, timing):
        return Hold(_waiting(observed, "StoppingWorkers", _why_stopping(observed, stopping)))
    if observed.store_in_use:
        return Hold(_waiting(observed, "StoreInUse", observed.store_in_use))
    due = retry_time(observed.job)
    if due is not None and now < due and observed.state == "Restarting":
        # As it was said when the attempt broke: a message that counts down would be written again and again.
        again = next_try(due, wait_s(observed.status.quick_restarts, timing))
        message = f"{observed.status.failure_reason}; {again}" if observed.status.failure_reason else again
        return Hold(_waiting(observed, "BackingOff", message))
    return None


def _why_stopping(observed: Observed, stopping: tuple[Pod, ...]) -> str:
    """Why it restarts says more than that the others stop, which takes seconds; who can't be reached takes longer."""
    lost = unreachable(stopping, observed.nodes)
    if lost:
        first = sorted(lost, key=index_of)[:NAMED]
        others = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        who = ", ".join(map(worker, first)) + others
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


def _start(observed: Observed, now: datetime, timing: Timing) -> Course:
    if observed.job.spec.suspend:
        return Park() if observed.queued else Go(suspended=True)
    if observed.queued:
        return Go(suspended=True)
    if observed.started:
        return _give_way(observed, now, timing) or Go(suspended=False)
    if _is_held_off(observed, now):
        return Go(True, Finding("Pending", "NotBound", observed.status.message or ""), retry_time(observed.job))
    if observed.verdict is None:
        return Hold(None)
    if observed.verdict.admitted:
        return Go(suspended=False)
    return Go(True, _waiting(observed, "NoRoom", observed.verdict.message))


def _is_held_off(observed: Observed, now: datetime) -> bool:
    """It made room for others; its message says why until its time has come."""
    due = retry_time(observed.job)
    return observed.state == "Pending" and due is not None and now < due


def _give_way(observed: Observed, now: datetime, timing: Timing) -> Go | None:
    """A gang that got its turn and not all its nodes must not hold some of them for ever."""
    due = bound_by(observed, timing)
    if due is None or now < due:
        return None
    why = why_not_all(observed, observed.job.spec.num_workers - len(observed.bound))
    within = span(timestamp(now), timestamp(now + timedelta(seconds=timing.bind_timeout_s)))
    message = f"not all workers found a node within {within}, so the others made room again; {why}"
    return Go(True, Finding("Pending", "NotBound", message), now + timedelta(seconds=timing.bind_timeout_s))


def why_not_all(observed: Observed, missing: int) -> str:
    desired = observed.job.spec.num_workers
    why = why_waiting(observed.pods, missing, desired, observed.told, observed.told_of_job)
    if observed.claim and "persistentvolumeclaim" in why.lower():
        # The scheduler says that a claim is in the way, and neither which nor why.
        return f"{why.rstrip('.')}; see what kubectl describe pvc {observed.claim} says"
    return why


def bound_by(observed: Observed, timing: Timing) -> datetime | None:
    """Until when an attempt that has started must have all its nodes; None once it has them."""
    job = observed.workers
    if job is None or not observed.started or observed.elastic or not job.status.start_time:
        return None  # an elastic training uses the nodes that it has
    placed = sum(bool(pod.spec.node_name) or pod.has_ended for pod in observed.pods)
    if placed >= observed.job.spec.num_workers or observed.state == "Running":
        return None
    return moment(job.status.start_time) + timedelta(seconds=timing.bind_timeout_s)


def _waiting(observed: Observed, reason: str, message: str) -> Finding:
    """A restarting job stays so until it runs; a suspended one until its old workers are gone."""
    state = "Restarting" if observed.state == "Restarting" or observed.status.restart_count else "Pending"
    if reason == "StoppingWorkers" and observed.state == "Suspended":
        state = "Suspended"
    return Finding(state, reason, message)
