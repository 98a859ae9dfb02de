"""The status of a SpotInstanceJob as people read it: phase, conditions, and one sentence. Pure.

What is decided about its replicas is in status already; this derives the rest from it and from the observation.
"""

from datetime import datetime

from msgspec import structs

from holdfast.api.meta import Condition, merge_conditions
from holdfast.api.spotinstancejob_status import Phase, ReplicaStatus, SpotInstanceJobStatus
from holdfast.decisions import MAX_MESSAGE, Finish
from holdfast.spotinstancejob.decide.actions import Action, Follow, Record
from holdfast.spotinstancejob.decide.end import ended
from holdfast.spotinstancejob.decide.replicas import is_running
from holdfast.spotinstancejob.snapshot import SpotInstanceJobSnapshot, condition_of, with_status
from holdfast.spotinstancejob.waiting import Obstacle, obstacle_of, what_is_waited_for
from holdfast.times import format_time

ENDS = ("Succeeded", "Failed")


def next_status(observed: SpotInstanceJobSnapshot, action: Action, now: datetime) -> SpotInstanceJobStatus:
    """The status that the job should show; equal to its present status when nothing has changed."""
    match action:
        case Record(status):
            return _described(with_status(observed, status), now)
        case Follow() if observed.blocked_by:
            return _described(observed, now)
        case Finish(finding):
            status = ended(observed, observed.status, action, now)
            phase: Phase = "Succeeded" if finding.state == "Succeeded" else "Failed"
            held = [_condition(observed, kind, kind == phase, finding.reason, finding.message, now) for kind in ENDS]
            over = [
                _condition(observed, kind, False, "JobEnded", finding.message, now)
                for kind in ("Provisioning", "Running", "Recovering")
                if kind == "Running" or condition_of(status, kind) is not None
            ]
            return structs.replace(
                status,
                observed_generation=observed.job.metadata.generation,
                phase=phase,
                message=finding.message[:MAX_MESSAGE],
                active_replicas=0,
                conditions=merge_conditions(status.conditions, [*over, *held]),
            )
    return observed.status


def _described(observed: SpotInstanceJobSnapshot, now: datetime) -> SpotInstanceJobStatus:
    status = observed.status
    active = sum(is_running(observed, each) for each in status.job_statuses)
    phase, message = _phase(observed, active), what_is_waited_for(observed, now)
    conditions = [
        _provisioning(observed, now),
        _condition(observed, "Running", active > 0, *_running_reason(observed, active, message), now),
        *_recovering(observed, now),
    ]
    return structs.replace(
        status,
        observed_generation=observed.job.metadata.generation,
        phase=phase,
        message=message[:MAX_MESSAGE],
        active_replicas=active,
        conditions=merge_conditions(status.conditions, conditions),
    )


def _phase(observed: SpotInstanceJobSnapshot, active: int) -> Phase:
    phases = {each.phase for each in observed.status.job_statuses}
    if observed.job.spec.suspend:
        return "Suspended"
    if "Recovering" in phases:
        return "Recovering"
    if active:
        return "Running"
    return "Provisioning" if phases & {"Provisioning", "Starting"} else "Pending"


def _running_reason(observed: SpotInstanceJobSnapshot, active: int, message: str) -> tuple[str, str]:
    if active:
        return "ReplicasRunning", "a replica runs"
    return ("Suspended" if observed.job.spec.suspend else "NoReplicaRuns"), message


def _provisioning(observed: SpotInstanceJobSnapshot, now: datetime) -> Condition:
    """True while machines are on their way; False names what keeps them from it."""
    waiting = [each for each in observed.status.job_statuses if each.phase in ("Pending", "Provisioning", "Recovering")]
    without_node = [each for each in waiting if each.node_name is None]
    obstacles = [found for each in without_node if (found := obstacle_of(observed, each)) is not None]
    if obstacles:
        first: Obstacle = obstacles[0]
        return _condition(observed, "Provisioning", False, first.reason, first.message, now)
    ordered = [each.machine for each in without_node if each.machine is not None]
    if ordered:
        return _condition(observed, "Provisioning", True, "MachinesOrdered", f"waiting for {', '.join(ordered)}", now)
    return _condition(observed, "Provisioning", False, "NotNeeded", "no replica waits for a machine", now)


def _recovering(observed: SpotInstanceJobSnapshot, now: datetime) -> list[Condition]:
    """Shown from the first loss on. Afterwards it says where the last replica that was brought back began."""
    status = observed.status
    lost = [each for each in status.job_statuses if each.phase == "Recovering"]
    if lost:
        text = "; ".join(f"replica {each.replica}: {each.message}" for each in lost)
        return [_condition(observed, "Recovering", True, _reason(lost[0]), text, now)]
    if not status.recoveries:
        return []
    last = status.recoveries[-1]
    if last.source == "start":
        text = f"replica {last.replica} began anew: there was no image that it could go on from"
        return [_condition(observed, "Recovering", False, "RestartedFromBeginning", text, now)]
    text = f"replica {last.replica} went on from {last.image}"
    return [_condition(observed, "Recovering", False, "Recovered", text, now)]


def _reason(replica: ReplicaStatus) -> str:
    return {"preemption": "Preemption", "infrastructure": "Infrastructure", "outOfMemory": "OutOfMemory"}.get(
        replica.cause or "", "Application"
    )


def _condition(
    observed: SpotInstanceJobSnapshot, kind: str, holds: bool, reason: str, message: str, now: datetime
) -> Condition:
    return Condition(
        type=kind,
        status="True" if holds else "False",
        reason=reason,
        message=message[:MAX_MESSAGE],
        last_transition_time=format_time(now),
        observed_generation=observed.job.metadata.generation,
    )
