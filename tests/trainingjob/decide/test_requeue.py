"""When a job is looked at again although nothing happens: what is seen → the next moment that matters."""

from datetime import datetime
from typing import Any

import pytest

from holdfast.trainingjob.decide.decision import explain_after, requeue_at
from holdfast.trainingjob.decide.restart import shown_duration
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobSnapshot
from tests.trainingjobs import at, deleted, node, running, stamp, training_job, unschedulable, worker, workers

LIMITED = {"failurePolicy": {"activeDeadlineSeconds": 100}}
SAVING = {"checkpoint": {"storage": {"type": "pvc"}}}
SUSPENDED = {
    "state": "Suspended",
    "startTime": stamp(0),
    "conditions": [
        {"type": "Suspended", "status": "True", "reason": "X", "message": "", "lastTransitionTime": stamp(50)}
    ],
}
HALF = (running(0), unschedulable(1, "no room"))
OUT_OF_REACH = {"old_pods": (deleted(running(0), asked=50),), "nodes": {"gpu-3": node(ready=False)}}


def woken(
    now: float, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **more: Any
) -> datetime | None:
    return requeue_at(TrainingJobSnapshot(job=training_job(spec, status=status), **more), at(now), TIMING)


@pytest.mark.parametrize(
    ("due", "spec", "status", "more"),
    [
        (100, LIMITED, {"state": "Running", "startTime": stamp(0)}, {}),
        (80, {}, {"state": "Restarting", "nextRetryTime": stamp(80)}, {}),
        (600, {}, {"state": "Initializing"}, {"current_job": workers(), "pods": HALF}),
        (140, {}, {"state": "Restarting"}, OUT_OF_REACH),
        (140, {}, {"state": "Suspended"}, {"pods": OUT_OF_REACH["old_pods"], "nodes": OUT_OF_REACH["nodes"]}),
        (110, {}, {"state": "Restarting"}, {"old_jobs": (deleted(workers(), asked=50, grace_s=0),)}),
        (80, SAVING, {"state": "Running", "epochs": {"goal": "TargetReached", "goalTime": stamp(20)}}, {}),
        (90, {"ttlSecondsAfterFinished": 30}, {"state": "Failed", "completionTime": stamp(60)}, {}),
        (90, {"ttlSecondsAfterFinished": 30}, {"state": "Completed", "completionTime": stamp(60)}, {}),
        # The first of several.
        (80, LIMITED, {"state": "Restarting", "startTime": stamp(0), "nextRetryTime": stamp(80)}, OUT_OF_REACH),
        (100, LIMITED, {"state": "Restarting", "startTime": stamp(0), "nextRetryTime": stamp(120)}, OUT_OF_REACH),
    ],
)
def test_a_job_is_looked_at_when_the_next_decision_may_differ(
    due: float, spec: dict[str, Any], status: dict[str, Any], more: dict[str, Any]
) -> None:
    assert woken(70, spec, status, **more) == at(due)
    assert woken(due, spec, status, **more) != at(due)


@pytest.mark.parametrize(
    ("spec", "status", "more"),
    [
        ({}, None, {}),
        (LIMITED, {"state": "Pending"}, {}),
        ({}, {"state": "Completed", "completionTime": stamp(60)}, {}),
        # Nothing of an ended job is waited for.
        (LIMITED, {"state": "Failed", "startTime": stamp(0), "nextRetryTime": stamp(80)}, OUT_OF_REACH),
        # A worker within reach goes when it goes.
        ({}, {"state": "Restarting"}, {**OUT_OF_REACH, "nodes": {"gpu-3": node()}}),
    ],
)
def test_a_job_that_only_news_can_change_is_left_alone(
    spec: dict[str, Any], status: dict[str, Any] | None, more: dict[str, Any]
) -> None:
    assert woken(70, spec, status, **more) is None


@pytest.mark.parametrize(
    ("now", "due", "duration"),
    [
        *((0, 60, None), (59, 60, None), (60, 120, "1m"), (599, 600, "9m"), (600, 1200, "10m"), (1300, 1800, "20m")),
        *((7199, 7200, "1h50m"), (7200, 10800, "2h"), (100_000, 100_800, "1d3h")),
    ],
)
def test_the_duration_of_a_running_job_is_written_in_steps_that_grow(
    now: float, due: float, duration: str | None
) -> None:
    status = {"state": "Running", "startTime": stamp(0)}
    more = {"current_job": workers(), "pods": (running(0), running(1))}
    assert woken(now, {}, status, **more) == at(due)
    assert shown_duration(stamp(0), at(now)) == duration


def test_a_suspended_jobs_deadline_recedes_and_wakes_nobody() -> None:
    """It would be a moment away at every look, for ever."""
    for now in (51, 70, 10**6):
        assert woken(now, {**LIMITED, "suspend": True}, SUSPENDED) is None


READY = {"active": 2, "ready": 2}


@pytest.mark.parametrize(
    ("job", "state", "due"),
    [
        (None, "Pending", None),
        (workers(suspend=True), "Pending", None),
        (workers(status={"startTime": ""}), "Initializing", None),
        (deleted(workers(), asked=1), "Initializing", None),
        (workers(status=READY), "Running", None),
        (workers(status={"ready": 1, "succeeded": 1}), "Running", None),
        (workers(), "Initializing", 3),
        (workers(status={"ready": 1}), "Restarting", 3),
        # Whoever has ended needs no explanation for the workers that are missing.
        (workers(), "Failed", None),
        (workers(), "Completed", None),
    ],
)
def test_workers_that_take_longer_than_usual_are_asked_why(job: Any, state: str, due: float | None) -> None:
    observed = TrainingJobSnapshot(
        job=training_job(status={"state": state}), current_job=job, pods=(worker(0, {"phase": "Pending"}),)
    )
    assert explain_after(observed, TIMING) == (None if due is None else at(due))
