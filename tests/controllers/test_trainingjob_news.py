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
        ({"checkpoint": {"enabled": False}}, []),
        ({"checkpoint": {}, "ttlSecondsAfterFinished": 0}, ["checkpoint", "ttlSecondsAfterFinished"]),
        ({"monitoring": {"tensorboardEnabled": True}}, ["monitoring.tensorboardEnabled"]),
        ({"networking": {"rdmaEnabled": True}}, ["networking.rdmaEnabled"]),
        ({"networking": {"masterPort": 1}, "monitoring": {}}, []),
    ],
)
def test_only_what_is_written_counts(spec: dict[str, Any], fields: list[str]) -> None:
    assert not_acted_on(training_job(spec)) == fields
