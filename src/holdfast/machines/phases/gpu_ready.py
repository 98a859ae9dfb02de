"""GPUReady: until the node is ready, with all its DaemonSets and GPUs. Only then it is reserved for its job.

Earlier the taint would keep away the pods that bring the driver and the device plugin.
"""

from datetime import datetime, timedelta

from holdfast.api.core.objects import Node, Pod
from holdfast.api.scalars import InvalidQuantity, parse_quantity
from holdfast.machines.phases.presence import ask, is_there
from holdfast.machines.phases.step import (
    ReportReady,
    ReserveNode,
    Step,
    at_step,
    ending,
    nothing,
    unusable,
    waiting,
    with_condition,
)
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming, found_gone
from holdfast.times import format_time

GPU = "nvidia.com/gpu"
NODE_READY, DAEMON_SETS, GPUS = "NodeReady", "DaemonSets", "GPUs"
NOT_READY = "gpu"


def gpu_ready(seen: MachineSnapshot, now: datetime, timing: MachineTiming) -> Step:
    if seen.is_deleted or seen.is_ending or not seen.holds("Joined") or found_gone(seen):
        return nothing(seen)
    if seen.holds("GPUReady") or seen.node is None:
        return nothing(seen)
    missing = _missing(seen, seen.node)
    if missing is None:
        return _ready(seen, seen.node, now)
    step, what = missing
    over_at = (seen.since("Joined") or now) + timedelta(seconds=timing.gpu_ready_s)
    if now >= over_at:
        if not is_there(seen, NOT_READY):
            return ask(seen, NOT_READY, now)
        message = f"{seen.where} was not ready within {timing.gpu_ready_s:g} s: {what}"
        return Step(status=ending(seen, "GPUReady", False, step, message, now), effects=(unusable(step, message),))
    message = f"waiting: {what}; its time is over at {format_time(over_at)}"
    return Step(status=waiting(seen, "GPUReady", "GPUReady", step, message, now), recheck_at=(over_at,))


def _missing(seen: MachineSnapshot, node: Node) -> tuple[str, str] | None:
    if not node.is_ready:
        said = next((each.message for each in node.status.conditions if each.type == "Ready"), "")
        return NODE_READY, f"Node {node.metadata.name} is not ready" + (f" ({said})" if said else "")
    unready = sorted(pod.metadata.name for pod in seen.pods if is_of_daemon_set(pod) and _is_awaited(pod))
    if unready:
        more = f" and {len(unready) - 3} more" if len(unready) > 3 else ""
        return DAEMON_SETS, f"DaemonSet pods on the node are not ready: {', '.join(unready[:3])}{more}"
    wanted, found = wanted_gpus(seen), _allocatable(node)
    if found < wanted:
        return GPUS, f"Node {node.metadata.name} offers {found} {GPU} of {wanted}: are driver and device plugin there?"
    return None


def _ready(seen: MachineSnapshot, node: Node, now: datetime) -> Step:
    gpus = {0: "", 1: " with 1 GPU"}.get(wanted_gpus(seen), f" with {wanted_gpus(seen)} GPUs")
    message = f"Node {node.metadata.name} is ready{gpus}"
    status = with_condition(seen, seen.status, "GPUReady", True, "Ready", message, now)
    return Step(status=at_step(status, "Serve", "Serving", message, now), effects=(ReserveNode(node), ReportReady()))


def wanted_gpus(seen: MachineSnapshot) -> int:
    """None where the template is gone: what is there has to do."""
    template = seen.template
    return template.spec.gpu.count if template is not None and template.spec.gpu is not None else 0


def is_of_daemon_set(pod: Pod) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.kind == "DaemonSet"


def _is_awaited(pod: Pod) -> bool:
    return pod.condition("Ready") is None and not pod.is_finished and not pod.is_terminating


def _allocatable(node: Node) -> int:
    try:
        return int(parse_quantity(str(node.status.allocatable.get(GPU, 0))))
    except InvalidQuantity:
        return 0
