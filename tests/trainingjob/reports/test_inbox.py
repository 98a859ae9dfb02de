"""Reports wait in memory until they are in a status."""

from datetime import datetime
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.api.reports import WorkerReport
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from holdfast.trainingjob.decide.liveness import WorkerReports
from holdfast.trainingjob.decide.snapshot import PendingReport
from holdfast.trainingjob.reports.inbox import MAX_PENDING, Inbox, InboxFull
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjob.reports.reports import batch, checkpoint, ended, resumed
from tests.trainingjobs import at

JOB = Key("ml", "bert")


class Clock:
    seconds = 0.0

    def now(self) -> datetime:
        return at(self.seconds)

    def __call__(self) -> float:
        return 1000.0 + self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inbox(clock: Clock) -> Inbox:
    return Inbox(now=clock.now, clock=clock)


def test_reports_stay_in_order_until_they_are_acknowledged(inbox: Inbox, clock: Clock) -> None:
    inbox.put(JOB, batch(ended(1)))
    clock.seconds = 3
    inbox.put(JOB, batch(ended(2)))
    taken = inbox.pending(JOB)
    assert taken == (PendingReport(batch(ended(1)), at(0)), PendingReport(batch(ended(2)), at(3)))
    inbox.put(JOB, batch(ended(3)))
    inbox.acknowledge(JOB, taken)
    assert [letter.batch for letter in inbox.pending(JOB)] == [batch(ended(3))]
    inbox.acknowledge(JOB, inbox.pending(JOB))
    assert inbox.pending(JOB) == ()


def test_a_write_that_failed_loses_nothing(inbox: Inbox) -> None:
    inbox.put(JOB, batch(ended(1)))
    inbox.pending(JOB)
    assert len(inbox.pending(JOB)) == 1


def test_reports_are_due_at_most_every_five_seconds(inbox: Inbox, clock: Clock) -> None:
    assert inbox.due(JOB, at(0)) is None
    inbox.put(JOB, batch(ended(1)))
    assert inbox.due(JOB, at(0)) == at(0)
    inbox.acknowledge(JOB, inbox.pending(JOB))
    assert inbox.due(JOB, at(0)) is None
    clock.seconds = 2
    inbox.put(JOB, batch(ended(2)))
    assert inbox.due(JOB, at(2)) == at(5)


def test_a_sign_of_life_is_received_and_leaves_no_report(inbox: Inbox, clock: Clock) -> None:
    clock.seconds = 7
    inbox.put(JOB, batch(index=1))
    assert inbox.pending(JOB) == ()
    heard = inbox.reports_of(JOB, 0)
    assert heard is not None
    assert heard.workers == {1: WorkerReports(1007.0)}
    assert inbox.reports_of(JOB, 1) is None
    assert inbox.reports_of(Key("ml", "other"), 0) is None


@pytest.mark.parametrize(
    ("report", "is_news"),
    [
        (batch(), False),
        (batch(ended(1)), True),
        (batch(checkpoints=(checkpoint(1),)), True),
        (batch(resumed=resumed(1)), True),
    ],
)
def test_the_controller_looks_when_there_is_something_to_write(
    inbox: Inbox, report: WorkerReport, is_news: bool
) -> None:
    told: list[Key] = []
    inbox.put(JOB, batch())
    inbox.attach(informers(), told.append)
    inbox.put(JOB, report)
    assert told == ([JOB] if is_news else [])


def test_the_controller_looks_when_a_worker_is_first_heard(inbox: Inbox) -> None:
    told: list[Key] = []
    inbox.attach(informers(), told.append)
    for report, is_first in ((batch(), True), (batch(), False), (batch(index=1), True), (batch(attempt=1), True)):
        told.clear()
        inbox.put(JOB, report)
        assert told == ([JOB] if is_first else [])


def test_what_can_not_be_written_for_minutes_is_left_to_the_sidecars(inbox: Inbox) -> None:
    for number in range(MAX_PENDING):
        inbox.put(JOB, batch(ended(number)))
    with pytest.raises(InboxFull, match="64 reports of ml/bert wait to be written"):
        inbox.put(JOB, batch(ended(99)))
    assert inbox.pending(JOB)[-1].batch == batch(ended(MAX_PENDING - 1))
    inbox.put(Key("ml", "other"), batch(ended(1)))
    inbox.put(JOB, batch())


def test_a_job_that_has_ended_leaves_nothing_behind(inbox: Inbox) -> None:
    inbox.put(JOB, batch(ended(1)))
    inbox.acknowledge(JOB, ())
    inbox.forget(JOB)
    assert (inbox.pending(JOB), inbox.due(JOB, at(0)), inbox.reports_of(JOB, 0)) == ((), None, None)
    inbox.forget(JOB)


def informers() -> Informers:
    return Informers(ScriptedCluster(), (), metrics=Metrics(), random=Random(0))
