"""What a TrainingJob's user is told: the step from one status to the next → events."""

from typing import Any

import msgspec
import pytest

from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.pods.start_problems import MOUNTING, NOT_FINISHED, NOT_TAKEN_UP, UNBOUND, UNSCHEDULED
from holdfast.trainingjob.metrics import events_for
from tests.trainingjobs import stamp, training_job


def told(before: dict[str, Any] | None, after: dict[str, Any]) -> list[tuple[str, str]]:
    job = training_job(status=before)
    return [(item.reason, item.message) for item in events_for(job, msgspec.convert(after, TrainingJobStatus))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, {"state": "Pending", "message": "taken"}, [("Waiting", "taken")]),
        ({"state": "Pending", "message": "taken"}, {"state": "Pending", "message": "taken"}, []),
        ({"state": "Pending", "message": "taken"}, {"state": "Pending", "message": "quota"}, [("Waiting", "quota")]),
        ({"state": "Running"}, {"state": "Running", "message": "still"}, []),
        ({"state": "Running"}, {"state": "Restarting", "message": "lost one"}, [("Restarting", "lost one")]),
        ({"state": "Running"}, {"state": "Failed", "failureReason": "no"}, [("Failed", "no")]),
    ],
)
def test_each_step_has_one_event(
    before: dict[str, Any] | None, after: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert told(before, after) == expected


@pytest.mark.parametrize(
    ("spec", "workers", "made"),
    [
        ({}, "2 workers", ", ServiceAccount bert"),
        ({"numWorkers": 1}, "1 worker", ", ServiceAccount bert"),
        ({"podTemplate": {"serviceAccountName": "mine"}}, "2 workers", ""),
        (
            {"checkpoint": {}, "monitoring": {"tensorboardEnabled": True}},
            "2 workers",
            ", ServiceAccount bert, TensorBoard bert-tensorboard",
        ),
    ],
)
def test_one_event_tells_all_that_was_made(spec: dict[str, Any], workers: str, made: str) -> None:
    job = training_job(spec)
    after = {"state": "Initializing", "workers": {"desired": job.spec.num_workers}}
    (item,) = events_for(job, msgspec.convert(after, TrainingJobStatus))
    assert (item.reason, item.warning) == ("WorkersCreated", False)
    assert item.message == (
        f"made Job bert-training with {workers}, Services bert-headless and bert-master, ConfigMap bert-config{made}"
    )


@pytest.mark.parametrize("state", ["Running", "Suspended", "Completed"])
def test_what_goes_well_is_in_the_status_alone(state: str) -> None:
    after = {"state": state, "message": "m", "duration": "2h13m", "workers": {"desired": 2}}
    for old in ("Pending", "Initializing", "Running", "Restarting", "Suspended"):
        assert told({"state": old, "message": "old"}, after) == []


def test_what_a_user_may_have_to_mend_is_a_warning() -> None:
    job = training_job(status={"state": "Running"})
    (item,) = events_for(job, TrainingJobStatus(state="Failed", failure_reason="x"))
    assert (item.reason, item.warning) == ("Failed", True)


@pytest.mark.parametrize(
    ("message", "is_told"),
    [
        (f"waiting for 1 of 2 workers: {UNSCHEDULED}", False),
        (f"waiting for 1 of 2 workers: the kubelet of a {NOT_TAKEN_UP}", False),
        (f"waiting for 1 of 2 workers: init container a {NOT_FINISHED}", False),
        (f'waiting for 1 of 2 workers: image "a" {MOUNTING}', False),
        (f"waiting for 1 of 2 workers: 0/1 nodes are available: {UNBOUND}. preemption: 0/1", False),
        ('waiting for 1 of 2 workers: image "a" can\'t be pulled', True),
        ("waiting for 1 of 2 workers: container trainer failed to start", True),
    ],
)
def test_what_workers_wait_for_is_a_warning_unless_they_only_take_their_time(message: str, is_told: bool) -> None:
    job = training_job(status={"state": "Initializing", "message": "waiting for 1 of 2 workers to start"})
    items = list(events_for(job, TrainingJobStatus(state="Initializing", message=message)))
    assert [(item.reason, item.message, item.warning) for item in items] == [("Waiting", message, True)] * is_told


@pytest.mark.parametrize(("restarts", "warning"), [({"application": 1}, True), (None, False)])
def test_only_an_attempt_after_a_failure_is_a_warning(restarts: dict[str, int] | None, warning: bool) -> None:
    status = {"state": "Restarting", "restartCount": 1, "message": "3 workers", "restarts": restarts}
    (item,) = events_for(training_job(status={"state": "Running"}), msgspec.convert(status, TrainingJobStatus))
    assert (item.reason, item.warning) == ("Restarting", warning)


def resumed(attempt: int, path: str | None) -> dict[str, Any]:
    return {
        "state": "Running",
        "restartCount": attempt,
        "epochs": {"attempt": attempt},
        "checkpoint": {"resumedFrom": path} if path else {},
    }


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        ({"state": "Running"}, resumed(0, "runs/1"), True),
        (resumed(0, None), resumed(0, "runs/1"), True),
        (resumed(0, "runs/1"), resumed(0, "runs/1"), False),
        (resumed(0, "runs/1"), resumed(0, "runs/2"), True),
        ({**resumed(0, "runs/1"), "restartCount": 1}, resumed(1, "runs/1"), True),
        ({**resumed(0, "runs/1"), "restartCount": 1}, resumed(1, None), False),
    ],
    ids=["first", "later", "again", "after-a-suspension", "by-the-next-attempt", "from-scratch"],
)
def test_each_attempt_tells_once_what_it_goes_on_from(
    before: dict[str, Any], after: dict[str, Any], is_told: bool
) -> None:
    path = after["checkpoint"].get("resumedFrom")
    expected = [("Resumed", f"attempt {after['restartCount']} goes on from {path}")]
    assert told(before, after) == (expected if is_told else [])


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


@pytest.mark.parametrize("state", ["Suspended", "Pending"], ids=["suspension", "room-made-for-others"])
def test_a_job_whose_workers_start_once_more_makes_nothing(state: str) -> None:
    after = {"state": "Initializing", "workers": {"desired": 3}}
    assert told({"state": state, "startTime": stamp(0)}, after) == [("WorkersCreated", "started 3 workers")]


@pytest.mark.parametrize("state", ["Suspended", "Pending"])
def test_a_job_that_was_held_from_the_beginning_tells_what_was_made_when_it_starts(state: str) -> None:
    ((_, message),) = told({"state": state}, {"state": "Initializing", "workers": {"desired": 3}})
    assert message.startswith("made Job bert-training with 3 workers")


@pytest.mark.parametrize("state", ["Pending", "Initializing", "Restarting", "Failed"])
def test_a_step_into_a_state_is_told_in_one_event(state: str) -> None:
    after = {"state": state, "message": "m", "failureReason": "f", "duration": "1s", "workers": {"desired": 2}}
    for old in ("Pending", "Initializing", "Running", "Restarting", "Suspended"):
        assert len(told({"state": old, "message": "m"}, after)) == (old != state)


def test_nothing_new_is_no_news() -> None:
    before = {"state": "Restarting", "restartCount": 1, "message": "m"}
    assert told(before, {**before, "workers": {"desired": 2, "active": 1}}) == []
