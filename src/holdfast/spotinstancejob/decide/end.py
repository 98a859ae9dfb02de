"""How a job ends, and how it is suspended. Pure.

The first success ends the job. backoffLimit and activeDeadlineSeconds hold for all attempts of all replicas together.
"""

from datetime import datetime, timedelta

from msgspec import structs

from holdfast.api.core.objects import Job
from holdfast.api.spotinstancejob import REPLICA_LABEL, SpotInstanceJob
from holdfast.api.spotinstancejob_status import ReplicaPhase, SpotInstanceJobStatus
from holdfast.decisions import Finish, StateReason
from holdfast.spotinstancejob.decide.checkpoints import ask_for_checkpoint
from holdfast.spotinstancejob.decide.replicas import is_running, next_attempt
from holdfast.spotinstancejob.snapshot import (
    SpotInstanceJobSnapshot,
    active_deadline_s,
    status_of,
    with_replica,
)
from holdfast.times import format_time, parse_time


def find_end(observed: SpotInstanceJobSnapshot, now: datetime) -> Finish | None:
    """What ends the job whatever its replicas would do next."""
    if observed.rejected_reason:
        return Finish(StateReason("Failed", "Refused", observed.rejected_reason))
    winner = succeeded_job(observed)
    if winner is not None:
        return Finish(StateReason("Succeeded", "Completed", f"Job {winner.metadata.name} has succeeded"))
    due = deadline(observed.job)
    if due is not None and now >= due:
        seconds = active_deadline_s(observed.job)
        message = f"it has run for longer than the {seconds} s of jobTemplate.spec.activeDeadlineSeconds"
        return Finish(StateReason("Failed", "DeadlineExceeded", message))
    return None


def find_failure(status: SpotInstanceJobStatus) -> Finish | None:
    """The job fails when no replica runs and none may start again."""
    failed = [each for each in status.job_statuses if each.phase == "Failed"]
    if not failed or len(failed) < len(status.job_statuses):
        return None
    last = failed[-1]
    return Finish(StateReason("Failed", "ReplicasFailed", f"replica {last.replica}: {last.message}"))


def succeeded_job(observed: SpotInstanceJobSnapshot) -> Job | None:
    """Of whatever attempt it is: a training that is done is done."""
    done = (job for _, job in sorted(observed.jobs.items()) if job.condition("Complete") is not None)
    return next(done, None)


def deadline(job: SpotInstanceJob) -> datetime | None:
    """When activeDeadlineSeconds are used up, without the time that the job was suspended; never while it is."""
    seconds, status = active_deadline_s(job), status_of(job)
    if seconds is None or status.start_time is None or status.suspend_time is not None:
        return None
    return parse_time(status.start_time) + timedelta(seconds=seconds + status.suspended_seconds)


def expiry(job: SpotInstanceJob) -> datetime | None:
    """When a job that has ended is to be deleted."""
    ttl_s, ended = job.spec.ttl_seconds_after_finished, status_of(job).completion_time
    return parse_time(ended) + timedelta(seconds=ttl_s) if ttl_s is not None and ended else None


def ended(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, finish: Finish, now: datetime
) -> SpotInstanceJobStatus:
    """The status at the end: replacements and restores are called off."""
    winner = succeeded_job(observed) if finish.finding.state == "Succeeded" else None
    number = winner.metadata.labels.get(REPLICA_LABEL) if winner is not None else None
    for each in status.job_statuses:
        if each.phase != "Failed":
            phase: ReplicaPhase = "Succeeded" if str(each.replica) == number else "Stopped"
            status = with_replica(status, structs.replace(each, phase=phase, awaited_checkpoint=0))
    return structs.replace(
        status,
        completion_time=format_time(now),
        next_checkpoint_time=None,
        checkpoints_in_progress=(),
    )


# Suspension: save, stop, give the machines back; later go on from the newest image.


def suspend(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime) -> SpotInstanceJobStatus:
    """The running replicas are saved first. Once these checkpoints have ended, however they did, all stops."""
    if status.suspend_time is None:
        status = structs.replace(status, suspend_time=format_time(now))
        for replica in status.job_statuses:
            if is_running(observed, replica) and observed.is_healthy(replica.node_name or ""):
                status, _ = ask_for_checkpoint(status, replica, replica.name, "Suspend", now)
    if is_saving(status):
        return status
    for replica in status.job_statuses:
        if replica.phase not in ("Stopped", "Failed"):
            new = structs.replace(replica, phase="Stopped", node_name=None, machine=None, awaited_checkpoint=0)
            status = with_replica(status, new)
    return structs.replace(status, next_checkpoint_time=None)


def is_saving(status: SpotInstanceJobStatus) -> bool:
    """Each of them has a deadline."""
    return bool(status.checkpoints_in_progress)


def resume(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime) -> SpotInstanceJobStatus:
    """The time of the suspension does not count; what was stopped has another attempt."""
    if status.suspend_time is None:
        return status
    # Before its first start the job's time had not begun.
    began = max(parse_time(status.suspend_time), parse_time(status.start_time)) if status.start_time else now
    seconds = max(0, int((now - began).total_seconds()))
    status = structs.replace(status, suspend_time=None, suspended_seconds=status.suspended_seconds + seconds)
    for replica in status.job_statuses:
        if replica.phase == "Stopped":
            status = with_replica(status, next_attempt(observed, replica, "Pending"))
    return status
