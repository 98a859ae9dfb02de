"""What a Job needs next: its pods and its status, from what is seen of both."""

from collections.abc import Set
from datetime import datetime

from msgspec import Struct, structs

from holdfast.api.builtin import JobCondition, JobStatus
from holdfast.plane.jobs import indexes
from holdfast.plane.jobs.accounting import PodCounts, count_finished_pods
from holdfast.plane.jobs.census import JobPods
from holdfast.plane.jobs.ending import FINAL, JobOutcome, deadline, job_outcome
from holdfast.plane.jobs.replicas import NewPod, Staffing, plan_scale
from holdfast.plane.jobs.standing import is_ready
from holdfast.plane.objects import Job, Pod
from holdfast.runtime.clocks import format_time


class Plan(Struct, frozen=True, kw_only=True):
    """In this order: pods to make, the status, pods to let go, pods to stop with their Job, pods too many.

    Those too many are let go before they are stopped, so that they count for nothing.
    """

    create: tuple[NewPod, ...]
    status: JobStatus
    release: tuple[Pod, ...]
    stop: tuple[Pod, ...]
    surplus: tuple[Pod, ...]
    again_s: float | None


def plan(job: Job, pods: tuple[Pod, ...], now: datetime, released: Set[str] = frozenset()) -> Plan:
    """`released` are pods that this process has let go, though the cache may not show it yet."""
    census = JobPods(_started(job, now), pods, released)
    over = job_outcome(census, now)
    staff = Staffing() if over else plan_scale(census, now)
    counts = count_finished_pods(census, over)
    stop = census.active if over else ()
    going = {pod.metadata.uid for pod in (*stop, *staff.surplus)}
    staying = [pod for pod in census.active if pod.metadata.uid not in going]
    status = structs.replace(
        census.job.status,
        active=len(staying) + len(staff.create),
        ready=sum(map(is_ready, staying)),
        terminating=len(census.terminating) + len(going),
        succeeded=counts.succeeded,
        failed=counts.failed,
        uncounted_terminated_pods=counts.uncounted,
        completed_indexes=indexes.format_indexes(census.completed_indexes) if census.job.is_indexed else "",
        failed_indexes=indexes.format_indexes(census.failed_indexes),
        conditions=_with_suspended_condition(census, now),
    )
    return Plan(
        create=staff.create,
        status=_with_terminal_conditions(census, status, over, counts, now) if over else status,
        stop=stop,
        surplus=staff.surplus,
        release=counts.release,
        again_s=None if over else _again_s(census, staff, now),
    )


def _started(job: Job, now: datetime) -> Job:
    """The clock of a suspended Job stands at nothing; the one of a resumed Job starts anew."""
    start = "" if job.spec.suspend else job.status.start_time or format_time(now)
    return structs.replace(job, status=structs.replace(job.status, start_time=start))


def _with_suspended_condition(census: JobPods, now: datetime) -> tuple[JobCondition, ...]:
    conditions, suspend = census.job.status.conditions, census.job.spec.suspend
    was = any(condition.type == "Suspended" and condition.status == "True" for condition in conditions)
    if was == suspend:
        return conditions
    reason, message = ("JobSuspended", "Job suspended") if suspend else ("JobResumed", "Job resumed")
    new = _condition("Suspended", reason, message, now, status="True" if suspend else "False")
    return (*(condition for condition in conditions if condition.type != "Suspended"), new)


def _with_terminal_conditions(
    census: JobPods, status: JobStatus, over: JobOutcome, counts: PodCounts, now: datetime
) -> JobStatus:
    """Final only when everything has stopped and is counted: whoever sees it may rely on the numbers."""
    settled = not (status.active or status.terminating or census.tracked or _has_uncounted(counts))
    kinds = (over.type, FINAL[over.type]) if settled else (over.type,)
    there = {condition.type for condition in status.conditions if condition.status == "True"}
    new = tuple(_condition(kind, over.reason, over.message, now) for kind in kinds if kind not in there)
    completed = format_time(now) if settled and over.is_success else status.completion_time
    return structs.replace(status, conditions=(*status.conditions, *new), completion_time=completed)


def _has_uncounted(counts: PodCounts) -> bool:
    return bool(counts.uncounted.succeeded or counts.uncounted.failed)


def _condition(kind: str, reason: str, message: str, now: datetime, *, status: str = "True") -> JobCondition:
    return JobCondition(type=kind, status=status, reason=reason, message=message, last_transition_time=format_time(now))


def _again_s(census: JobPods, staff: Staffing, now: datetime) -> float | None:
    due = deadline(census.job)
    times = [staff.again_s, (due - now).total_seconds() if due else None]
    return min((time for time in times if time is not None), default=None)
