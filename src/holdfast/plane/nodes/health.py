"""What a machine's own words say, and what its silence does."""

from datetime import datetime
from typing import NamedTuple

from msgspec import structs

from holdfast.api.builtin import Lease
from holdfast.plane.objects import Condition, Node, condition
from holdfast.runtime.clocks import format_time

# What a machine tells about itself; when it tells nothing any more, all of it is unknown.
_TOLD = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


class Heartbeat(NamedTuple):
    """The last sign of life, as it was written: only that it changes counts, since machines' clocks differ."""

    renewed: str
    heartbeat: str


def sign_of_life(node: Node, lease: Lease | None) -> Heartbeat:
    ready = condition(node.status.conditions, "Ready")
    return Heartbeat(lease.spec.renew_time or "" if lease else "", ready.last_heartbeat_time or "" if ready else "")


def readiness(node: Node) -> str:
    ready = condition(node.status.conditions, "Ready")
    return ready.status if ready else ""


def unknown_conditions(node: Node, now: datetime) -> tuple[Condition, ...]:
    """The conditions of a machine that is not heard of any more."""
    conditions = node.status.conditions
    if condition(conditions, "Ready") is None:
        never = "Kubelet never posted node status."
        new = Condition(type="Ready", status="Unknown", reason="NodeStatusNeverUpdated", message=never)
        conditions = (*conditions, structs.replace(new, last_transition_time=format_time(now)))
    return tuple(_unknown(each, now) if each.type in _TOLD else each for each in conditions)


def _unknown(told: Condition, now: datetime) -> Condition:
    if told.status == "Unknown":
        return told
    return structs.replace(
        told,
        status="Unknown",
        reason="NodeStatusUnknown",
        message="Kubelet stopped posting node status.",
        last_transition_time=format_time(now),
    )
