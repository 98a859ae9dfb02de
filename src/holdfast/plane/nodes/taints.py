"""The marks that a machine's state puts on it."""

from collections.abc import Iterator
from datetime import datetime

from holdfast.api.placing import Taint
from holdfast.plane.nodes.health import readiness
from holdfast.plane.objects import Node
from holdfast.runtime.clocks import format_time

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_LOST = {"False": NOT_READY, "Unknown": UNREACHABLE}
_PRESSED = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_CORDONED = "node.kubernetes.io/unschedulable"
# Only these marks are ours to set and to take off.
_OURS = {(key, "NoSchedule") for key in (*_LOST.values(), *_PRESSED.values(), _CORDONED)} | {
    (key, "NoExecute") for key in _LOST.values()
}


def wanted_taints(node: Node, *, evict: bool, now: datetime) -> tuple[Taint, ...]:
    """The taints that the machine should have; those that are there stay as they are, with their time."""
    wanted = dict.fromkeys(_taints_for_conditions(node, evict))
    kept = [taint for taint in node.spec.taints if _is_foreign(taint) or (taint.key, taint.effect) in wanted]
    there = {(taint.key, taint.effect) for taint in kept}
    new = (Taint(key=key, effect=effect, time_added=format_time(now)) for key, effect in wanted.keys() - there)
    return (*kept, *sorted(new, key=lambda taint: (taint.key, taint.effect)))


def _taints_for_conditions(node: Node, evict: bool) -> Iterator[tuple[str, str]]:
    lost = _LOST.get(readiness(node))
    if lost:
        yield lost, "NoSchedule"
        if evict:
            yield lost, "NoExecute"
    for condition in node.status.conditions:
        if condition.status == "True" and condition.type in _PRESSED:
            yield _PRESSED[condition.type], "NoSchedule"
    if node.spec.unschedulable:
        yield _CORDONED, "NoSchedule"


def _is_foreign(taint: Taint) -> bool:
    return (taint.key, taint.effect) not in _OURS
