"""The way of a try to its node: what it waits for, and for how long by a clock that never jumps."""

from collections.abc import Iterator
from typing import Literal

from holdfast.api.builtin import Pod
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.trainingjob.waiting import problem_of

Awaited = Literal["", "node", "Job", "Job controller", "pod", "scheduler", "room"]
# They have not looked at it yet, and it would be no different with another node: there is no hurry to look for one.
UNSEEN_BY = ("Job controller", "scheduler")


def is_bound(observed: Observed) -> bool:
    """The pod of the present try has its node."""
    return any(pod.spec.node_name for pod in observed.pods)


def pending_step(observed: Observed) -> Awaited:
    """What the try needs next to get to its node; "" when it is there, or has none."""
    job = observed.job
    if not observed.node or is_bound(observed):
        return ""
    node = observed.nodes.get(observed.node)
    if node is not None and not node.is_ready:
        return "node"
    if job is None or not observed.job_is_made:
        return "Job"
    if observed.pods:
        return "room" if any(map(_is_unschedulable, observed.pods)) else "scheduler"
    # Where somebody else has suspended its Job, no controller is late.
    return "pod" if job.status.start_time or job.spec.suspend else "Job controller"


def is_overdue(observed: Observed, timing: Timing) -> bool:
    """Another node may be better, or somebody else could use this one."""
    what = pending_step(observed)
    return what not in ("", *UNSEEN_BY) and observed.pending_s >= _due_s(what, timing)


def lacks_pod(observed: Observed) -> bool:
    """The Job controller was there, and made none: that has a reason."""
    return pending_step(observed) == "pod" and observed.is_late


def recheck_in_s(observed: Observed, timing: Timing) -> Iterator[float]:
    """When to look again although nothing happens; its room is also kept by that."""
    what = pending_step(observed)
    if not what:
        return
    due_s = (timing.explain_s, timing.bind_timeout_s) if what == "pod" else (_due_s(what, timing),)
    yield from (due - observed.pending_s for due in due_s if due > observed.pending_s)
    yield timing.bind_timeout_s


def start_problem(observed: Observed) -> str:
    """What keeps its pod from starting, as far as anybody says; "" when nobody does."""
    match pending_step(observed):
        case "Job":
            return observed.status.message or ""
        case "pod" if observed.job is not None and observed.job.spec.suspend:
            return f"Job {observed.job.metadata.name} was suspended by somebody else"
        case "pod" if observed.job_problem:
            return f"it is refused: {observed.job_problem}"
        case ("Job controller" | "scheduler") as who if observed.is_late:
            return f"the {who} has not looked at it yet"
    return next(filter(None, map(problem_of, observed.pods)), "")


def _due_s(what: Awaited, timing: Timing) -> float:
    return timing.node_not_ready_s if what == "node" else timing.bind_timeout_s


def _is_unschedulable(pod: Pod) -> bool:
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions)
