"""The status of a GPUWorkload, from the observation and the chosen action."""

from datetime import datetime

from msgspec import structs

from holdfast.api import meta as conditions
from holdfast.api.gpuworkload import GPUWorkloadStatus
from holdfast.api.meta import Condition
from holdfast.decisions import MAX_MESSAGE, CleanUp, Finish, StateReason, Wait
from holdfast.gpuworkload.decision import BACKING_OFF, Action, AssignNode, RetryAttempt, RunJob, StopJobs, Suspend
from holdfast.gpuworkload.snapshot import GPUWorkloadSnapshot, job_name, last_attempt, start_problem
from holdfast.times import format_time, next_attempt

# The phases in which a condition is true.
TRUE_IN = {
    "Scheduled": ("Scheduled", "Running", "Succeeded"),
    "Running": ("Running",),
    "Succeeded": ("Succeeded",),
    "Failed": ("Failed",),
}
MAKING_JOB = "making its Job"
ALWAYS_SHOWN = ("Scheduled", "Running")


def next_status(observed: GPUWorkloadSnapshot, action: Action, now: datetime) -> GPUWorkloadStatus:
    """The status that the workload should show; equal to its present status when nothing has changed."""
    old, finding = observed.status, state_reason(observed, action, now)
    if finding is None:
        return old
    finding = StateReason(finding.state, finding.reason, finding.message[:MAX_MESSAGE])
    status = structs.replace(
        old,
        observed_generation=observed.workload.metadata.generation,
        phase=finding.state,
        message=finding.message,
        next_retry_time=old.next_retry_time if finding.reason == BACKING_OFF else None,
        conditions=conditions.merge_conditions(old.conditions, _conditions(observed, finding, now)),
    )
    match action:
        case AssignNode(node):
            name = job_name(observed.workload, last_attempt(observed.workload) + 1)
            moment = format_time(now)
            return structs.replace(
                status, assigned_node=node, job_name=name, last_schedule_time=moment, avoided_node=None
            )
        case RetryAttempt(retry):
            at = format_time(retry.at) if retry.at is not None else None
            count = old.retry_count + (not retry.failure.is_free)
            return structs.replace(
                status, assigned_node=None, next_retry_time=at, retry_count=count, avoided_node=observed.node
            )
        case Suspend():
            return structs.replace(status, assigned_node=None)
    return status


def state_reason(observed: GPUWorkloadSnapshot, action: Action, now: datetime) -> StateReason | None:
    """The state of the workload with its reason; None when the status stays as it is."""
    match action:
        case CleanUp() | StopJobs():
            return None
        case Finish(finding) | Wait(finding):
            return finding
        case RetryAttempt():
            return _retry_state(action, now)
        case Suspend():
            return StateReason("Pending", "Suspended", "spec.suspend is true: its pod is being stopped")
        case AssignNode(node):
            return StateReason("Scheduling", "NodeChosen", f"making its Job for {node}")
        case RunJob():
            return _running_state(observed)


def _retry_state(action: RetryAttempt, now: datetime) -> StateReason:
    retry = action.retry
    if retry.at is None:
        return StateReason("Pending", "NodeLost", f"{retry.failure.message}; looking for another node")
    again = next_attempt(retry.at, (retry.at - now).total_seconds())
    return StateReason("Pending", BACKING_OFF, f"{retry.failure.message}; {again}")


def _running_state(observed: GPUWorkloadSnapshot) -> StateReason:
    node = observed.node
    if observed.blocked_by or not observed.job_is_made:
        phase = observed.status.phase or "Scheduling"
        return StateReason(phase, "JobNotMade", observed.blocked_by or f"{MAKING_JOB} for {node}")
    if observed.status.phase == "Running" or any(pod.status.phase in ("Running", "Succeeded") for pod in observed.pods):
        return StateReason("Running", "PodRunning", f"running on {node}")
    because = start_problem(observed)
    message = f"its pod can't start on {node} yet: {because}" if because else f"waiting for its pod to start on {node}"
    return StateReason("Scheduled", "PodStarting", message)


def _conditions(observed: GPUWorkloadSnapshot, finding: StateReason, now: datetime) -> list[Condition]:
    known = {condition.type for condition in observed.status.conditions}
    shown = (kind for kind in TRUE_IN if kind in ALWAYS_SHOWN or kind in known or finding.state in TRUE_IN[kind])
    return [
        Condition(
            type=kind,
            status="True" if finding.state in TRUE_IN[kind] else "False",
            reason=finding.reason,
            message=finding.message,
            last_transition_time=format_time(now),
            observed_generation=observed.workload.metadata.generation,
        )
        for kind in shown
    ]
