"""The lines of `holdfast up`."""

import re
from typing import Any

import pytest

from holdfast.api.meta import ObjectMeta
from holdfast.cli.up_lines import EventLines, StateLines
from holdfast.cluster.protocol import Change, Event, Listing
from holdfast.cluster.resources import RawObject


def happened(uid: str, *, count: int = 1, kind: str = "TrainingJob", namespace: str = "default") -> RawObject:
    about = {"kind": kind, "namespace": namespace, "name": "mine"}
    body = {"involvedObject": about, "count": count, "message": "runs\nwell \x1b[1m"}
    return RawObject(metadata=ObjectMeta(name="a", uid=uid), document={**body, "lastTimestamp": "2026-01-01T00:00:00Z"})


def test_up_tells_each_event_of_a_job_once_and_each_repeat() -> None:
    told = EventLines()
    assert told.lines(Listing((happened("old"),), "1")) == []
    (line,) = told.lines(Event(Change.ADDED, "2", happened("new")))
    assert re.fullmatch(r"\d\d:\d\d mine: runs well \\x1b\[1m", line)
    assert told.lines(Event(Change.MODIFIED, "3", happened("new"))) == []
    assert len(told.lines(Event(Change.MODIFIED, "4", happened("new", count=2)))) == 1
    assert told.lines(Event(Change.ADDED, "5", happened("pod", kind="Pod"))) == []
    assert told.lines(Event(Change.DELETED, "6", happened("new", count=2))) == []
    assert told.lines(Event(Change.BOOKMARK, "7", None)) == []
    missed = (happened("old"), happened("missed", namespace="lab"))
    (late,) = told.lines(Listing(missed, "8"))
    assert " lab/mine: " in late


def job(state: str = "", *, uid: str = "a", namespace: str = "default", **status: Any) -> RawObject:
    document = {"status": {"state": state, **status}} if state else {}
    return RawObject(metadata=ObjectMeta(name="mine", namespace=namespace, uid=uid), document=document)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (job("Running", workers={"desired": 2}), "mine: running with 2 workers"),
        (job("Running", workers={"desired": 1}, namespace="lab"), "lab/mine: running with 1 worker"),
        (job("Suspended", message="spec.suspend is true"), "mine: spec.suspend is true"),
        (job("Completed", duration="3s", message="all\x1b done"), "mine: finished after 3s: all\\x1b done"),
    ],
)
def test_up_tells_the_states_that_no_event_tells(now: RawObject, said: str) -> None:
    told = StateLines()
    assert told.lines(Listing((job("Initializing"),), "1")) == []
    (line,) = told.lines(Event(Change.MODIFIED, "2", now))
    assert re.fullmatch(rf"\d\d:\d\d {re.escape(said)}", line)
    assert told.lines(Event(Change.MODIFIED, "3", now)) == []


@pytest.mark.parametrize("state", ["", "Pending", "Initializing", "Restarting", "Failed"])
def test_up_does_not_tell_what_an_event_tells_as_well(state: str) -> None:
    told = StateLines()
    assert told.lines(Listing((), "1")) == []
    assert told.lines(Event(Change.ADDED, "2", job(state))) == []


def test_up_tells_a_state_once_even_after_a_gap() -> None:
    told = StateLines()
    running = job("Running", workers={"desired": 1})
    assert told.lines(Event(Change.ADDED, "1", running)) == []
    assert told.lines(Listing((running,), "2")) == []  # told by the run before
    assert told.lines(Listing((running,), "3")) == []
    (line,) = told.lines(Listing((running, job("Completed", uid="b", duration="1s", message="done")), "4"))
    assert line.endswith("finished after 1s: done")
    assert told.lines(Event(Change.BOOKMARK, "5", None)) == []
    assert told.lines(Event(Change.DELETED, "6", running)) == []
    (again,) = told.lines(Event(Change.ADDED, "7", running))
    assert again.endswith("running with 1 worker")
