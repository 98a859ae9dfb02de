"""What a TrainingJob's status holds beside its state: counts, times, how it ended, and what the workers tell."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.meta import is_true
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.decisions import MAX_MESSAGE
from holdfast.pods.failure import WorkerFailure
from holdfast.trainingjob.decide.decision import StartNewAttempt, decide
from holdfast.trainingjob.decide.snapshot import TIMING
from tests.trainingjob.decide.statuses import BOTH, COMPLETE, NO_ROOM, READY, after, reasons, seen, shown
from tests.trainingjobs import at, deleted, failed, running, stamp, unschedulable, worker, workers

# What it holds


def test_workers_are_counted_as_the_job_controller_counts_them() -> None:
    counts = {"active": 3, "ready": 3, "succeeded": 1, "failed": 1}
    status = shown(seen({"numWorkers": 5}, current_job=workers(status=counts, size=5), min_workers=1))
    assert msgspec.to_builtins(status.workers) == {"desired": 5, "active": 3, "succeeded": 1, "failed": 1}
    assert msgspec.to_builtins(shown(seen({"numWorkers": 5})).workers) == {"desired": 5}


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ({"current_job": workers(), "pods": BOTH}, 2),
        ({"current_job": workers(), "pods": (running(0), worker(1, {"phase": "Pending"}))}, 1),
        ({"current_job": workers(), "pods": (running(0), worker(1, {"phase": "Succeeded"}, node="gpu-3"))}, 1),
        (
            {"current_job": workers(suspend=True), "spec": {"suspend": True}, "pods": (deleted(running(0), asked=50),)},
            1,
        ),
        ({"current_job": workers(conditions=COMPLETE), "pods": BOTH}, 0),
        ({}, 0),
    ],
)
def test_a_job_holds_what_its_bound_workers_hold(more: dict[str, Any], held: int) -> None:
    status = shown(seen(**more, gpus_per_worker=8))
    assert status.resources is not None
    assert (status.resources.workers, status.resources.gpus) == (held, held * 8)


def test_the_number_of_epochs_and_the_selector_are_known_from_the_spec() -> None:
    status = shown(seen({"hyperparameters": {"epochs": 12}}))
    assert (status.total_epochs, status.selector) == (12, "training-job=bert")
    assert shown(seen()).total_epochs is None


# The end


def test_an_ended_job_stays_as_it_ended_but_says_that_it_has_seen_the_spec() -> None:
    ended = shown(seen(current_job=workers(conditions=COMPLETE)))
    assert after(ended, seen()) == ended
    job = seen().job
    edited = structs.replace(job, metadata=structs.replace(job.metadata, generation=4))
    assert after(ended, structs.replace(seen(), job=edited)) == structs.replace(ended, observed_generation=4)


def test_times_of_a_completed_job_are_its_jobs() -> None:
    job = workers(status={"completionTime": stamp(8000)}, conditions=COMPLETE)
    status = shown(seen(current_job=job), 9000)
    assert (status.start_time, status.completion_time, status.duration) == (stamp(0), stamp(8000), "2h13m")
    assert status.failure_reason is None


@pytest.mark.parametrize(("now", "duration"), [(59, None), (119, "1m"), (500, "8m")])
def test_a_running_job_shows_its_duration_so_far(now: float, duration: str | None) -> None:
    assert shown(seen(current_job=workers(status=READY)), now).duration == duration


def test_the_start_of_a_resumed_job_is_its_first_start() -> None:
    first = shown(seen(current_job=workers()))
    resumed = after(first, seen(current_job=workers(status={"startTime": stamp(3600)})))
    assert resumed.start_time == stamp(0)


def test_a_job_that_waits_has_not_started() -> None:
    assert (
        shown(seen(current_job=workers(status={"startTime": ""}, suspend=True), admission=NO_ROOM)).start_time is None
    )


def test_a_failed_job_says_which_worker_failed_where_and_with_what_and_when_it_was_given_up() -> None:
    pods = (failed(1, 1, at=stamp(51)), failed(0, 3, at=stamp(50), message="no such layer\n"))
    spec = {"failurePolicy": {"restartPolicy": "ExitCode"}}
    status = shown(seen(spec, {"state": "Running", "restartCount": 2}, current_job=workers(), pods=pods), 60)
    assert status.failure_reason == status.message
    assert status.failure_reason == (
        "worker 0 on gpu-3 exited with code 3: no such layer (restartPolicy ExitCode: codes 1 to 127 are final)"
    )
    assert (status.completion_time, status.duration, status.restart_count) == (stamp(60), "1m", 2)
    assert is_true(status.conditions, "Failed")


def test_a_job_that_fails_before_it_started_lasted_no_time() -> None:
    status = shown(seen(rejected_reason="no such field"))
    assert (status.start_time, status.completion_time, status.duration) == (None, stamp(60), "0s")


def test_a_job_that_completes_after_restarts_forgets_its_last_failure() -> None:
    before = {"state": "Running", "restartCount": 1, "failureReason": "worker 0 broke", "nextRetryTime": stamp(1)}
    status = shown(seen(status=before, current_job=workers(name="bert-training-1", conditions=COMPLETE)))
    assert (status.failure_reason, status.next_retry_time, status.restart_count) == (None, None, 1)


def test_what_others_report_of_a_job_is_kept() -> None:
    reported = {"state": "Running", "progress": "45%", "currentEpoch": 9, "metrics": {"loss": 0.25}}
    status = shown(seen(status=reported, current_job=workers(), pods=BOTH))
    assert (status.progress, status.current_epoch, status.metrics) == ("45%", 9, {"loss": 0.25})


def test_nothing_is_written_before_somebody_has_looked_for_room() -> None:
    assert shown(seen(admission=None)) == TrainingJobStatus()


def test_a_message_that_would_not_fit_is_cut() -> None:
    for observed in (seen(rejected_reason="x" * 100_000), seen(blocked_by="x" * 100_000)):
        status = shown(observed)
        assert len(status.message or "") == MAX_MESSAGE
        assert max(len(condition.message) for condition in status.conditions) == MAX_MESSAGE


def test_a_waiting_job_says_for_how_many_and_why() -> None:
    scarce = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    pods = (unschedulable(0, scarce), unschedulable(1, "rare"), unschedulable(2, scarce))
    job = workers(status={"active": 4, "ready": 1}, size=4)
    assert shown(seen({"numWorkers": 4}, current_job=job, pods=pods)).message == f"waiting for 3 of 4 workers: {scarce}"


def test_what_events_tell_is_told_on() -> None:
    told = shown(seen(current_job=workers(), job_event="their pods are refused: exceeded quota: gpus"))
    assert told.message == "waiting for 2 of 2 workers: their pods are refused: exceeded quota: gpus"


def test_the_course_of_a_new_attempt_is_the_only_one_that_counts_a_restart() -> None:
    broken = seen(status={"state": "Running"}, current_job=workers(), pods=(failed(0, 1, at=stamp(50)),))
    course = decide(broken, at(60), TIMING)
    assert isinstance(course, StartNewAttempt)
    for other in (
        seen(),
        seen(admission=NO_ROOM),
        seen({"suspend": True}),
        seen(current_job=workers(suspend=True), spec_changed=True),
    ):
        assert shown(other).restart_count == 0


# What the workers tell

PACED = {
    "state": "Running",
    "restartCount": 1,
    "totalEpochs": 8,
    "currentEpoch": 3,
    "progress": "37%",
    "metrics": {"loss": 0.5},
    "estimatedCompletionTime": stamp(5000),
    "epochs": {"attempt": 1, "done": 3, "position": 3.0},
}


def test_what_was_told_stays_while_the_workers_run() -> None:
    status = shown(seen(status=PACED, current_job=workers(status=READY), pods=BOTH))
    assert (status.state, status.estimated_completion_time) == ("Running", stamp(5000))
    assert (status.progress, status.current_epoch, status.metrics) == ("37%", 3, {"loss": 0.5})


@pytest.mark.parametrize(
    "more",
    [
        {"current_job": workers(status=READY), "pods": (running(0), failed(1, 1, at=stamp(50)))},
        {"current_job": workers(conditions=COMPLETE)},
        {"spec": {"suspend": True}, "current_job": workers(suspend=True)},
        {"current_job": workers(status=READY), "pods": BOTH, "rejected_reason": "no"},
    ],
    ids=["restarting", "completed", "suspended", "failed"],
)
def test_nobody_foresees_the_end_of_a_job_that_does_not_run(more: dict[str, Any]) -> None:
    status = shown(seen(status=PACED, **more))
    assert status.state != "Running"
    assert status.estimated_completion_time is None
    assert (status.progress, status.current_epoch, status.metrics) == ("37%", 3, {"loss": 0.5})


@pytest.mark.parametrize(
    ("told_by", "spec", "total"),
    [
        (1, {"hyperparameters": {"epochs": 20}}, 8),
        (1, {}, 8),
        (0, {"hyperparameters": {"epochs": 20}}, 20),
        (0, {}, None),
    ],
)
def test_how_many_epochs_there_are_is_what_this_attempt_says_else_what_is_written(
    told_by: int, spec: dict[str, Any], total: int | None
) -> None:
    status = {**PACED, "epochs": {"attempt": told_by}}
    assert shown(seen(spec, status=status, current_job=workers(status=READY), pods=BOTH)).total_epochs == total


def test_a_goal_is_why_a_job_has_ended() -> None:
    goal = {"attempt": 1, "done": 3, "goal": "EarlyStopped", "goalTime": stamp(0), "bestLoss": 0.25, "bestEpoch": 1}
    spec = {"successPolicy": {"earlyStoppingPatience": 2}}
    status = shown(seen(spec, status={**PACED, "epochs": goal}, current_job=workers(status=READY), pods=BOTH))
    assert (status.state, reasons(status)["Succeeded"]) == ("Completed", "EarlyStopped")
    assert status.message == (
        "no better loss than 0.25 of epoch 1 came until epoch 3 (successPolicy.earlyStoppingPatience)"
    )
    assert status.failure_reason is None


@pytest.mark.parametrize(("cause", "reason"), [("hang", "NoProgress"), ("infrastructure", "InfrastructureLost")])
def test_what_was_not_heard_is_counted_by_its_class(cause: Any, reason: str) -> None:
    loss = WorkerFailure(cause=cause, message="nothing was heard")
    status = shown(seen(status=PACED, current_job=workers(status=READY), pods=BOTH, liveness_failure=loss))
    assert (status.state, status.restart_count, status.failure_reason) == ("Restarting", 2, "nothing was heard")
    assert getattr(status.restarts, cause) == 1
    assert reasons(status)["Restarting"] == reason
