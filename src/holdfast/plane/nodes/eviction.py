"""When a pod has to leave a machine that is marked, or that is gone."""

from datetime import datetime, timedelta

from holdfast.api.placing import Taint
from holdfast.plane.objects import Condition, Pod, condition, with_condition
from holdfast.planning.placing.tolerance import find_toleration
from holdfast.planning.times import parse_time
from holdfast.runtime.clocks import format_time


def eviction_time(pod: Pod, taints: tuple[Taint, ...], now: datetime) -> datetime | None:
    """The moment from which the pod may no longer stay; None when it may stay for ever."""
    moments = []
    for taint in taints:
        if taint.effect != "NoExecute":
            continue
        since = parse_time(taint.time_added) if taint.time_added else now
        toleration = find_toleration(pod.spec.tolerations, taint)
        if toleration is None:
            moments.append(since)
        elif toleration.toleration_seconds is not None:
            moments.append(since + timedelta(seconds=max(0, toleration.toleration_seconds)))
    return min(moments, default=None)


def disrupted(pod: Pod, reason: str, message: str, now: datetime) -> tuple[Condition, ...]:
    """The pod's conditions with the one that says that it is not its own fault."""
    there = condition(pod.status.conditions, "DisruptionTarget")
    if there is not None and (there.status, there.reason) == ("True", reason):
        return pod.status.conditions
    new = Condition(
        type="DisruptionTarget",
        status="True",
        reason=reason,
        message=message,
        last_transition_time=format_time(now),
    )
    return with_condition(pod.status.conditions, new)


def not_ready(pod: Pod, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a pod whose machine is lost."""
    ready = condition(pod.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        return pod.status.conditions
    new = Condition(type="Ready", status="False", reason="NodeNotReady", last_transition_time=format_time(now))
    return with_condition(pod.status.conditions, new)
