"""Decides for a SpotInstanceJob. Pure functions: no I/O, no clock.

`plan` and `complete` take the status from what it was to what it is to be; between them free nodes and zones are looked
for, for the attempts that the plan has begun. What is to be done follows from the new status alone (`work`).
"""

from collections.abc import Iterator
from datetime import datetime

from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.decisions import CleanUp
from holdfast.spotinstancejob.decide.actions import Action, Follow, Record
from holdfast.spotinstancejob.decide.checkpoints import ask_for_due, checkpoints_ahead, note_results
from holdfast.spotinstancejob.decide.end import deadline, find_end, find_failure, resume, suspend
from holdfast.spotinstancejob.decide.failure import find_lost_attempts, lost_attempts_ahead
from holdfast.spotinstancejob.decide.needs import check_nodes, needs_ahead, provide
from holdfast.spotinstancejob.decide.recovery import choose_sources, drop_missing_images, recover
from holdfast.spotinstancejob.decide.replicas import match_replicas, note_running
from holdfast.spotinstancejob.decide.start import start, starts_ahead
from holdfast.spotinstancejob.decide.work import clean_up_ended, work
from holdfast.spotinstancejob.snapshot import SpotInstanceJobSnapshot, SpotInstanceJobTiming, with_status


def plan(observed: SpotInstanceJobSnapshot, now: datetime, timing: SpotInstanceJobTiming) -> SpotInstanceJobStatus:
    """What has become of the replicas and their checkpoints, and the attempts that follow."""
    status = note_running(observed, observed.status, now)
    status = note_results(observed, status, now, timing)
    if observed.job.spec.suspend:
        return suspend(observed, status, now)
    status = resume(observed, status, now)
    status = match_replicas(observed, status)
    status = recover(observed, status, find_lost_attempts(observed, status, now, timing), now, timing)
    return check_nodes(observed, drop_missing_images(observed, status))


def complete(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, now: datetime, timing: SpotInstanceJobTiming
) -> SpotInstanceJobStatus:
    """The plan, with nodes, machines and images for the attempts, and the checkpoints that are due."""
    if observed.job.spec.suspend:
        return status
    status = provide(observed, status)
    status = choose_sources(observed, status)
    status = start(observed, status, now, timing)
    return ask_for_due(observed, status, now)


def decide(observed: SpotInstanceJobSnapshot, now: datetime, timing: SpotInstanceJobTiming) -> tuple[Action, ...]:
    if observed.finished:
        return (*clean_up_ended(observed), CleanUp())
    end = find_end(observed, now)
    if end is not None:
        return (end,)
    planned = observed.planned if observed.planned is not None else plan(observed, now, timing)
    status = complete(observed, planned, now, timing)
    end = find_failure(status)
    if end is not None:
        return Record(status), end
    return Record(status), *work(with_status(observed, status), now, timing), Follow()


def ahead(observed: SpotInstanceJobSnapshot, now: datetime, timing: SpotInstanceJobTiming) -> Iterator[datetime]:
    """When the decision may differ though nothing happens."""
    status = observed.status
    moments = (
        *checkpoints_ahead(observed, status, timing),
        *lost_attempts_ahead(observed, status, timing),
        *needs_ahead(observed),
        *starts_ahead(observed, status, timing),
        *filter(None, (deadline(observed.job),)),
    )
    yield from (each for each in moments if each > now)
