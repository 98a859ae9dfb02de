"""When a TrainingJob has to be looked at again although nothing happens."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from holdfast.planning.times import parse_time
from holdfast.planning.trainingjob.course import bind_deadline
from holdfast.planning.trainingjob.deadline import deadline, expiry, next_duration, retry_time
from holdfast.planning.trainingjob.leftovers import give_up_times
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.success import final_save_deadline
from holdfast.planning.trainingjob.timing import Timing


def requeue_at(observed: Observed, now: datetime, timing: Timing) -> datetime | None:
    """The next moment at which a decision may differ; None when only news can change it."""
    return min((due for due in _moments(observed, now, timing) if due > now), default=None)


def _moments(observed: Observed, now: datetime, timing: Timing) -> Iterator[datetime]:
    if observed.finished:
        due = expiry(observed.job)
        if due is not None:
            yield due
        return
    # The deadline of a suspended job recedes with every moment: it is asked for again when the job goes on.
    running_out = None if observed.state == "Suspended" else deadline(observed.job, now)
    for due in (
        running_out,
        retry_time(observed.job),
        bind_deadline(observed, timing),
        final_save_deadline(observed.job, timing),
    ):
        if due is not None:
            yield due
    if observed.state == "Running" and observed.status.start_time:
        yield next_duration(observed.status.start_time, now)
    yield from give_up_times(observed, timing)


def explain_after(observed: Observed, timing: Timing) -> datetime | None:
    """From when on workers that have not started are asked why."""
    job = observed.current_job
    if job is None or observed.finished or not observed.started or not job.status.start_time:
        return None
    if job.status.ready + job.status.succeeded >= observed.job.spec.num_workers:
        return None
    return parse_time(job.status.start_time) + timedelta(seconds=timing.explain_s)
