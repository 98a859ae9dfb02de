"""What a TrainingJob's user is told: the step from one status to the next → events."""

from typing import Any

import msgspec
import pytest

from holdfast.api.trainingjob import TrainingJobStatus
from holdfast.controllers.trainingjob.news import news, not_acted_on
from tests.trainingjobs import training_job


def told(before: dict[str, Any] | None, after: dict[str, Any], **spec: Any) -> list[tuple[str, str]]:
    job = training_job(spec, status=before)
    return [(item.reason, item.message) for item in news(job, msgspec.convert(after, TrainingJobStatus))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, {"state": "Initializing", "workers": {"desired": 2}}, [("WorkersCreated", "made 2 workers")]),
        (None, {"state": "Initializing", "workers": {"desired": 1}}, [("WorkersCreated", "made 1 worker")]),
        (None, {"state": "Pending", "message": "taken"}, [("Waiting", "taken")]),
        ({"state": "Pending", "message": "taken"}, {"state": "Pending", "message": "taken"}, []),
        ({"state": "Pending", "message": "taken"}, {"state": "Pending", "message": "quota"}, [("Waiting", "quota")]),
        (
            {"state": "Initializing"},
            {"state": "Running", "workers": {"desired": 1}},
            [("Started", "running with 1 worker")],
        ),
        ({"state": "Running"}, {"state": "Running", "message": "still"}, []),
        ({"state": "Running"}, {"state": "Restarting", "message": "lost one"}, [("Restarting", "lost one")]),
        ({"state": "Running"}, {"state": "Suspended", "message": "stopped"}, [("Suspended", "stopped")]),
        ({"state": "Running"}, {"state": "Completed", "duration": "2h13m"}, [("Completed", "finished after 2h13m")]),
        ({"state": "Running"}, {"state": "Failed", "failureReason": "no"}, [("Failed", "no")]),
    ],
)
def test_each_step_is_told_once(
    before: dict[str, Any] | None, after: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert told(before, after) == expected


def test_what_a_user_may_have_to_mend_is_a_warning() -> None:
    job = training_job(status={"state": "Running"})
    statuses = ({"state": "Failed", "failureReason": "x"}, {"state": "Completed", "duration": "1s"})
    warnings = [item.warning for status in statuses for item in news(job, msgspec.convert(status, TrainingJobStatus))]
    assert warnings == [True, False]


def test_fields_that_are_not_acted_on_are_told_once_at_the_start() -> None:
    first = told(None, {"state": "Pending", "message": "x"}, successPolicy={"targetAccuracy": 0.9})
    assert first[0] == ("NotActedOn", "this version of holdfast accepts but does not act on spec.successPolicy")
    later = told(
        {"state": "Pending"}, {"state": "Running", "workers": {"desired": 1}}, successPolicy={"targetAccuracy": 1}
    )
    assert [reason for reason, _ in later] == ["Started"]


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, []),
        ({"checkpoint": {}, "ttlSecondsAfterFinished": 0, "monitoring": {"tensorboardEnabled": True}}, []),
        ({"checkpoint": {"resumeFrom": "s3://a/b"}}, ["checkpoint.resumeFrom"]),
        ({"progressDeadlineSeconds": 5}, ["progressDeadlineSeconds"]),
        ({"successPolicy": {}, "progressDeadlineSeconds": 5}, ["progressDeadlineSeconds", "successPolicy"]),
    ],
)
def test_only_what_is_written_counts(spec: dict[str, Any], fields: list[str]) -> None:
    assert not_acted_on(training_job(spec)) == fields


@pytest.mark.parametrize(
    ("checkpoint", "is_told"),
    [
        (None, False),
        ({}, False),
        ({"storage": {"type": "pvc"}}, False),
        ({"storage": {"type": "nfs", "nfsServer": "a", "nfsPath": "/b"}}, False),
        ({"storage": {"type": "s3", "s3Bucket": "runs"}}, True),
        ({"storage": {"type": "gcs", "gcsBucket": "runs"}}, True),
        ({"storage": {"type": "azure", "azureContainer": "runs", "azureAccount": "account"}}, True),
        ({"enabled": False, "storage": {"type": "s3", "s3Bucket": "runs"}}, False),
    ],
)
def test_who_saves_to_an_object_store_is_warned_before_anything_is_lost(
    checkpoint: dict[str, Any] | None, is_told: bool
) -> None:
    spec = {} if checkpoint is None else {"checkpoint": checkpoint}
    first = told(None, {"state": "Pending", "message": "x"}, **spec)
    assert ("CheckpointsNotKept" in dict(first)) == is_told
    later = told({"state": "Pending", "message": "x"}, {"state": "Pending", "message": "y"}, **spec)
    assert later == [("Waiting", "y")]


def test_every_restart_is_told_with_its_number_even_from_one_restarting_state_to_the_next() -> None:
    before = {"state": "Restarting", "restartCount": 1, "message": "worker 0 broke; starting again at once"}
    after = {"state": "Restarting", "restartCount": 2, "message": before["message"]}
    assert told(before, after) == [("Restarting", "attempt 2: worker 0 broke; starting again at once")]


def test_what_a_restarting_or_starting_job_waits_for_is_told_when_it_changes() -> None:
    for state in ("Pending", "Initializing", "Restarting"):
        assert told({"state": state, "message": "a"}, {"state": state, "message": "b"}) == [("Waiting", "b")]
    for state in ("Running", "Suspended", "Completed", "Failed"):
        assert told({"state": state, "message": "a"}, {"state": state, "message": "b"}) == []


@pytest.mark.parametrize("state", ["Initializing", "Restarting"])
def test_workers_that_only_take_their_time_to_start_are_no_news(state: str) -> None:
    before = {"state": state, "message": "waiting for 2 of 2 workers to start"}
    assert told(before, {"state": state, "message": "waiting for 1 of 2 workers to start"}) == []
    slow = "waiting for 1 of 2 workers: image not found"
    assert told(before, {"state": state, "message": slow}) == [("Waiting", slow)]


def test_a_job_that_goes_on_after_a_suspension_starts_its_workers_and_makes_none() -> None:
    after = {"state": "Initializing", "workers": {"desired": 3}}
    assert told({"state": "Suspended"}, after) == [("WorkersCreated", "started 3 workers")]


@pytest.mark.parametrize(
    "state", ["Pending", "Initializing", "Running", "Restarting", "Suspended", "Completed", "Failed"]
)
def test_every_step_into_a_state_is_told_in_one_event(state: str) -> None:
    after = {"state": state, "message": "m", "failureReason": "f", "duration": "1s", "workers": {"desired": 2}}
    for old in ("Pending", "Initializing", "Running", "Restarting", "Suspended"):
        assert len(told({"state": old, "message": "m"}, after)) == (old != state)


def test_nothing_new_is_no_news() -> None:
    before = {"state": "Restarting", "restartCount": 1, "message": "m"}
    assert told(before, {**before, "workers": {"desired": 2, "active": 1}}) == []
