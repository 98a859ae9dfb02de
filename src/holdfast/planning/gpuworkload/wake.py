"""When a GPUWorkload has to be looked at again although nothing happens."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.planning.gpuworkload.leftovers import give_up_times
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.retry import retry_time
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.times import parse_time


def requeue_at(observed: Observed, now: datetime, timing: Timing) -> datetime | None:
    """The next moment at which a decision may differ; None when only news can change it."""
    return min((due for due in _moments(observed, now, timing) if due > now), default=None)


def expiry(workload: GPUWorkload) -> datetime | None:
    """When a workload that has ended is to be deleted."""
    ttl_s, status = workload.spec.ttl_seconds_after_finished, workload.status
    if ttl_s is None or status is None:
        return None
    ends = (each for each in status.conditions if each.type in ("Succeeded", "Failed") and each.status == "True")
    ended = next((parse_time(each.last_transition_time) for each in ends), None)
    return ended + timedelta(seconds=ttl_s) if ended is not None else None


def _moments(observed: Observed, now: datetime, timing: Timing) -> Iterator[datetime]:
    if observed.finished:
        yield from filter(None, (expiry(observed.workload),))
        return
    due = retry_time(observed.status, now, timing)
    if due is not None:
        yield due
    yield from give_up_times(observed, timing)
