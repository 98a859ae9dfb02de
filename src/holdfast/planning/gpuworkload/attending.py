"""Where a workload and the placement meet: it stands in line, keeps its room, or gives it back."""

from datetime import datetime

from msgspec import structs

from holdfast.planning.admission import PodRequirements
from holdfast.planning.gpuworkload.binding import pending_step
from holdfast.planning.gpuworkload.course import needs_node
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.request import request_for
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.placement import Placement


def sync_placement(
    observed: Observed, placement: Placement, shape: PodRequirements, now: datetime, now_s: float, timing: Timing
) -> tuple[Observed, float | None]:
    """What is seen, with what the placement says; and in how long to ask it again, while the workload waits.

    `shape` is of its pod; `now_s` is the time by a clock that never jumps. To be called before every decision, and for
    every workload before the first look: so a choice that is written in a status counts from the start.
    """
    request, awaited_s = request_for(observed, shape), 0.0
    if needs_node(observed, now, timing):
        placement.enqueue(request, now_s)
    elif step := pending_step(observed):
        awaited_s = placement.confirm(request, observed.node, now_s, step)
    else:
        placement.leave(request.uid)
    found = placement.wait(request.uid, now_s)
    wait, again_s = found if found is not None else (None, None)
    machine = placement.offered_node(request.uid) or ""
    is_late = awaited_s >= timing.explain_s
    return structs.replace(observed, offered_node=machine, wait=wait, pending_s=awaited_s, is_late=is_late), again_s
