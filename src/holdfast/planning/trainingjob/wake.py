"""When a TrainingJob has to be looked at again although nothing happens."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from holdfast.planning.times import moment
from holdfast.planning.trainingjob.course import bound_by
from holdfast.planning.trainingjob.deadline import deadline, expiry, next_duration, retry_time
from holdfast.planning.trainingjob.leftovers import given_up_at
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.success import save_by
from holdfast.planning.trainingjob.timing import Timing


def wake_at(observed: Observed, now: datetime, timing: Timing) -> datetime | None:
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
    for due in (running_out, retry_time(observed.job), bound_by(observed, timing), save_by(observed.job, timing)):
        if due is not None:
            yield due
    if observed.state == "Running" and observed.status.start_time:
        yield next_duration(observed.status.start_time, now)
    yield from given_up_at(observed, timing)


def explain_from(observed: Observed, timing: Timing) -> datetime | None:
    """From when on workers that have not started are asked why."""
    job = observed.workers
    if job is None or observed.finished or not observed.started or not job.status.start_time:
        return None
    if job.status.ready + job.status.succeeded >= observed.job.spec.num_workers:
        return None
    return moment(job.status.start_time) + timedelta(seconds=timing.explain_s)
