"""The status of a TrainingJob: what is seen, and the course that is taken → what is shown."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.builtin import Pod
from holdfast.api.trainingjob import TrainingJobStatus
from holdfast.planning.admission import Verdict
from holdfast.planning.conditions import holds
from holdfast.planning.trainingjob.classes import Loss
from holdfast.planning.trainingjob.course import Again, decide
from holdfast.planning.trainingjob.observed import SPEC_CHANGED, Observed
from holdfast.planning.trainingjob.status import CONDITION_OF, LONGEST, next_status
from holdfast.planning.trainingjob.timing import TIMING
from tests.trainingjobs import (
    at,
    deleted,
    disrupted,
    failed,
    node,
    owned,
    running,
    stamp,
    training_job,
    unschedulable,
    worker,
    workers,
)

ROOM = Verdict(admitted=True)
NO_ROOM = Verdict(admitted=False, message="needs 2 × 8 GPUs; 1 node has 8 free")
HERE = {"gpu-3": node()}
BOTH = (running(0), running(1))
READY = {"active": 2, "ready": 2}
COMPLETE = {"Complete": "CompletionsReached"}


def seen(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **more: Any) -> Observed:
    return Observed(**{"job": training_job(spec, status=status), "nodes": HERE, "verdict": ROOM, **more})


def shown(observed: Observed, now: float = 60) -> TrainingJobStatus:
    return next_status(observed, decide(observed, at(now), TIMING), at(now))


def after(status: TrainingJobStatus, observed: Observed, now: float = 60) -> TrainingJobStatus:
    """The status that follows `status` when this is seen next."""
    return shown(structs.replace(observed, job=structs.replace(observed.job, status=status)), now)


def reasons(status: TrainingJobStatus) -> dict[str, str]:
    return {condition.type: condition.reason for condition in status.conditions}


@pytest.mark.parametrize(
    ("observed", "state", "reason"),
    [
        (seen(), "Pending", "CreatingWorkers"),
        (seen(obstacle="Service bert-master is taken"), "Pending", "ChildNotMade"),
        (seen(verdict=NO_ROOM), "Pending", "NoRoom"),
        (seen(verdict=NO_ROOM, obstacle="taken"), "Pending", "ChildNotMade"),
        (seen(refusal="no such field"), "Failed", "Refused"),
        (seen(workers=workers()), "Initializing", "WorkersStarting"),
        (seen(workers=workers(status={"active": 2, "ready": 1})), "Initializing", "WorkersStarting"),
        (seen(workers=workers(status=READY)), "Running", "WorkersReady"),
        (seen(workers=workers(status={"active": 1, "ready": 1, "succeeded": 1})), "Running", "WorkersReady"),
        # One that has just ended is ready no more and not counted yet.
        (
            seen(
                workers=workers(
                    status={"active": 1, "ready": 1, "uncountedTerminatedPods": {"succeeded": ["uid-of-worker-0"]}}
                ),
            ),
            "Running",
            "WorkersReady",
        ),
        # A gang that runs and has lost nobody goes on, whatever is counted.
        (seen(status={"state": "Running"}, workers=workers(status={"ready": 1})), "Running", "WorkersReady"),
        (
            seen(
                status={"state": "Running"},
                workers=workers(status={"ready": 1}),
                pods=(running(0), worker(1, {"phase": "Succeeded"})),
                elastic=True,
            ),
            "Running",
            "WorkersReady",
        ),
        # An elastic one may really miss some.
        (
            seen(
                status={"state": "Running"},
                workers=workers(status={"ready": 1}),
                pods=(running(0), worker(1, {"phase": "Pending"})),
                elastic=True,
            ),
            "Restarting",
            "WorkersLost",
        ),
        (
            seen(
                status={"state": "Running"},
                workers=workers(status={"ready": 1}),
                pods=(running(0), deleted(running(1), asked=50)),
                elastic=True,
            ),
            "Restarting",
            "WorkersLost",
        ),
        # Before the first time that all are ready, running is not enough.
        (seen(status={"state": "Initializing"}, workers=workers(), pods=BOTH), "Initializing", "WorkersStarting"),
        (seen(status={"state": "Pending"}, workers=workers(), pods=BOTH), "Initializing", "WorkersStarting"),
        (seen(status={"state": "Restarting"}, workers=workers(), pods=BOTH), "Restarting", "WorkersLost"),
        (seen(status={"state": "Restarting"}, workers=workers(status=READY), pods=BOTH), "Running", "WorkersReady"),
        # Suspended by its user, and by Kueue.
        (seen({"suspend": True}), "Pending", "CreatingWorkers"),
        (seen({"suspend": True}, workers=workers(suspend=True), pods=BOTH), "Suspended", "StoppingWorkers"),
        (seen({"suspend": True}, workers=workers(suspend=True)), "Suspended", "Suspended"),
        (seen({"suspend": True}, queued=True), "Suspended", "Suspended"),
        (seen({"suspend": True}, workers=workers(), pods=BOTH, queued=True), "Suspended", "StoppingWorkers"),
        (seen(workers=workers(suspend=True), queued=True), "Pending", "Queued"),
        (seen(status={"restartCount": 1}, workers=workers(suspend=True), queued=True), "Restarting", "Queued"),
        (seen(workers=workers(), queued=True), "Initializing", "WorkersStarting"),
        # Broken, and outdated.
        (seen(status={"state": "Running"}), "Restarting", "InfrastructureLost"),
        (
            seen(status={"state": "Running", "startTime": stamp(0)}, workers=workers(), outdated=True),
            "Restarting",
            SPEC_CHANGED,
        ),
        (seen(workers=None, outdated=True), "Pending", "CreatingWorkers"),
        (seen(status={"state": "Restarting"}, earlier=(workers(),)), "Restarting", "StoppingWorkers"),
        (seen(status={"state": "Restarting", "nextRetryTime": stamp(70)}), "Restarting", "BackingOff"),
        # A name that is still taken.
        (
            seen(status={"state": "Restarting"}, workers=deleted(workers(), asked=50, grace_s=0)),
            "Restarting",
            "CreatingWorkers",
        ),
        # The ends.
        (seen(workers=workers(conditions=COMPLETE)), "Completed", "WorkersSucceeded"),
        (
            seen(workers=workers(conditions={"Failed": "PodFailurePolicy"}), elastic=True),
            "Failed",
            "PodFailurePolicy",
        ),
        (seen(workers=workers(conditions={"Failed": ""}), elastic=True), "Failed", "WorkersFailed"),
        (
            seen({"failurePolicy": {"backoffLimit": 0}}, workers=workers(), pods=(failed(0, 1, at=stamp(50)),)),
            "Failed",
            "BackoffLimitExceeded",
        ),
        (
            seen({"failurePolicy": {"activeDeadlineSeconds": 60}}, {"startTime": stamp(0)}, workers=workers()),
            "Failed",
            "DeadlineExceeded",
        ),
    ],
)
def test_what_is_seen_decides_the_state(observed: Observed, state: str, reason: str) -> None:
    status = shown(observed)
    assert (status.state, status.observed_generation) == (state, 3)
    assert reasons(status)[CONDITION_OF.get(state, "Running")] == reason
    assert status.message


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (disrupted(deleted(running(0), asked=50), "PreemptionByScheduler"), "Preempted"),
        (disrupted(deleted(running(0), asked=50), "EvictionByEvictionAPI"), "InfrastructureLost"),
        (failed(0, 137, at=stamp(50), reason="OOMKilled"), "OutOfMemory"),
        (failed(0, 1, at=stamp(50)), "WorkerFailed"),
    ],
)
def test_a_restart_says_to_which_class_it_belongs(pod: Pod, reason: str) -> None:
    status = shown(seen(status={"state": "Running"}, workers=workers(), pods=(pod,)))
    assert (status.state, status.restart_count, reasons(status)["Restarting"]) == ("Restarting", 1, reason)


def test_a_restart_is_written_whole() -> None:
    before = {
        "state": "Running",
        "restartCount": 4,
        "quickRestarts": 1,
        "restarts": {"preemption": 2, "application": 1},
        "startTime": stamp(-1000),
    }
    status = shown(seen(status=before, workers=workers(), pods=(failed(0, 7, at=stamp(50), message="boom"),)))
    assert msgspec.to_builtins(status) == {
        "observedGeneration": 3,
        "state": "Restarting",
        "message": f"worker 0 on gpu-3 exited with code 7: boom; next try at {stamp(70)}",
        "conditions": msgspec.to_builtins(status.conditions),
        "workers": {"desired": 2},
        "selector": "training-job=bert",
        "resources": {},
        "startTime": stamp(-1000),
        "failureReason": "worker 0 on gpu-3 exited with code 7: boom",
        "restartCount": 5,
        "restarts": {"preemption": 2, "application": 2},
        "quickRestarts": 2,
        "nextRetryTime": stamp(70),
    }


def test_a_restart_at_once_has_no_time_to_wait_for() -> None:
    status = shown(seen(status={"state": "Running"}, workers=workers(), pods=(failed(0, 7, at=stamp(50)),)))
    assert (status.next_retry_time, status.quick_restarts) == (None, 1)
    assert status.message == "worker 0 on gpu-3 exited with code 7; starting again at once"


def test_a_changed_spec_numbers_the_next_attempt_without_a_class_and_ends_the_row() -> None:
    before = {"state": "Running", "startTime": stamp(0), "restartCount": 1, "quickRestarts": 3, "restarts": {"hang": 1}}
    status = shown(seen(status=before, workers=workers(), pods=BOTH, outdated=True))
    assert (status.restart_count, status.quick_restarts, status.next_retry_time) == (2, 0, None)
    assert msgspec.to_builtins(status.restarts) == {"hang": 1}
    assert status.message == "stopping the workers: the spec has changed"


def test_why_a_job_restarts_stays_its_reason_until_it_runs() -> None:
    broken = seen(
        status={"state": "Running"}, workers=workers(), pods=(failed(0, 137, at=stamp(50), reason="OOMKilled"),)
    )
    old = owned(deleted(running(1), asked=60, grace_s=5), workers())
    again = workers(name="bert-training-1")
    steps = [
        seen(earlier=(workers(conditions={"Failed": "X"}),), other_pods=(old,)),
        seen(verdict=NO_ROOM),
        seen(obstacle="quota"),
        seen(workers=workers(name="bert-training-1", suspend=True), queued=True),
        seen(workers=again),
    ]
    status = shown(broken)
    for step in steps:
        status = after(status, step)
        assert (status.state, reasons(status)["Restarting"]) == ("Restarting", "OutOfMemory")
    status = after(status, seen(workers=workers(name="bert-training-1", status=READY), pods=BOTH))
    assert (status.state, holds(status.conditions, "Restarting")) == ("Running", False)


def test_the_time_of_the_next_try_is_shown_while_it_is_waited_for_and_no_longer() -> None:
    status = msgspec.convert({"state": "Restarting", "nextRetryTime": stamp(70), "restartCount": 1}, TrainingJobStatus)
    stopping = after(status, seen(other_pods=(deleted(running(0), asked=50),)))
    waiting = after(stopping, seen())
    assert (stopping.next_retry_time, waiting.next_retry_time) == (stamp(70), stamp(70))
    assert after(waiting, seen(verdict=None), 70) == waiting
    started = after(waiting, seen(workers=workers()), 70)
    assert started.next_retry_time is None
    assert after(waiting, seen(verdict=NO_ROOM), 70).next_retry_time is None


def test_a_gang_that_made_room_says_until_when_and_why_even_when_its_workers_have_stopped() -> None:
    half = (running(0), unschedulable(1, "0/3 nodes are available"))
    status = shown(seen(status={"state": "Initializing"}, workers=workers(), pods=half), 600)
    assert (status.state, status.next_retry_time) == ("Pending", stamp(1200))
    assert status.message is not None
    assert status.message.startswith("not all workers found a node within 10m")
    asleep = workers(suspend=True)
    stopping = after(status, seen(workers=asleep, pods=(deleted(running(0), asked=600),)), 601)
    stopped = after(stopping, seen(workers=asleep), 700)
    for later in (stopping, stopped):
        assert (later.state, later.message, later.next_retry_time) == ("Pending", status.message, stamp(1200))
    assert stopped.resources is not None
    assert stopped.resources.workers == 0


# Conditions


def test_a_condition_holds_exactly_in_its_state() -> None:
    run = shown(seen(workers=workers(status=READY)))
    end = after(run, seen(workers=workers(conditions=COMPLETE)))
    assert holds(run.conditions, "Running")
    assert {condition.type for condition in run.conditions} == {"Created", "Running"}
    assert {kind: holds(end.conditions, kind) for kind in ("Created", "Running", "Succeeded", "Failed")} == {
        "Created": True,
        "Running": False,
        "Succeeded": True,
        "Failed": False,
    }


def test_created_is_false_while_a_name_is_taken_and_stays_true_once_the_workers_were_made() -> None:
    blocked = shown(seen(obstacle="taken"))
    still_blocked = after(blocked, seen(obstacle="taken"))
    made = after(blocked, seen(workers=workers()))
    gone = after(made, seen())
    assert [holds(each.conditions, "Created") for each in (blocked, still_blocked, made, gone)] == [
        False,
        False,
        True,
        True,
    ]
    assert reasons(blocked)["Created"] == "ChildNotMade"
    assert reasons(made)["Created"] == "ChildrenMade"


def test_an_obstacle_does_not_change_the_state_of_a_job_that_runs() -> None:
    status = shown(seen(status={"state": "Running"}, workers=workers(), pods=BOTH, obstacle="Service is taken"))
    assert (status.state, status.message) == ("Running", "Service is taken")
    assert holds(status.conditions, "Running")


def test_the_time_of_a_transition_stays_while_the_status_of_the_condition_does() -> None:
    first = shown(seen(workers=workers()), 60)
    second = after(first, seen(workers=workers(), pods=(unschedulable(0, "0/1 nodes are available"),)), 90)
    third = after(second, seen(workers=workers(status=READY)), 120)
    times = [
        next(each.last_transition_time for each in status.conditions if each.type == "Running")
        for status in (first, second, third)
    ]
    assert times == [stamp(60), stamp(60), stamp(120)]
    assert second.message != first.message


def test_a_second_look_at_the_same_facts_changes_nothing() -> None:
    observed = seen(workers=workers(status={"active": 2, "ready": 1}))
    first = shown(observed)
    assert after(first, observed, 90) == first


# Suspension


def test_the_time_of_each_suspension_is_added_up_when_it_ends() -> None:
    asleep = seen({"suspend": True}, workers=workers(suspend=True))
    first = shown(asleep, 60)
    assert first.suspended_seconds == 0
    assert after(first, asleep, 90) == first
    awake = after(first, seen(workers=workers(), pods=BOTH), 100)
    assert (awake.state, awake.suspended_seconds) == ("Initializing", 40)
    again = after(after(awake, asleep, 200), seen(workers=workers()), 205)
    assert again.suspended_seconds == 45
    assert after(again, seen(workers=workers()), 300).suspended_seconds == 45


def test_a_job_that_waits_for_its_workers_to_stop_is_still_suspended() -> None:
    asleep = shown(seen({"suspend": True}, workers=workers(suspend=True), pods=BOTH), 60)
    assert asleep.message == "waiting for 2 workers to stop"
    resumed = after(asleep, seen(workers=workers(suspend=True), pods=(deleted(running(0), asked=60),)), 70)
    assert (resumed.state, resumed.suspended_seconds) == ("Suspended", 0)
    assert holds(resumed.conditions, "Suspended")


def test_a_suspended_job_tells_of_all_workers_that_still_stop() -> None:
    asleep = workers(name="bert-training-1", suspend=True)
    observed = seen({"suspend": True}, {"state": "Restarting"}, workers=asleep, other_pods=BOTH)
    assert (shown(observed).state, shown(observed).message) == ("Suspended", "waiting for 2 workers to stop")


def test_a_job_suspended_while_it_waits_for_its_next_try_says_so() -> None:
    before = {"state": "Restarting", "restartCount": 1, "nextRetryTime": stamp(300)}
    status = shown(seen({"suspend": True}, before, workers=workers(name="bert-training-1", suspend=True)))
    assert (status.state, status.next_retry_time) == ("Suspended", None)


# What it holds


def test_workers_are_counted_as_the_job_controller_counts_them() -> None:
    counts = {"active": 3, "ready": 3, "succeeded": 1, "failed": 1}
    status = shown(seen({"numWorkers": 5}, workers=workers(status=counts, size=5), elastic=True))
    assert msgspec.to_builtins(status.workers) == {"desired": 5, "active": 3, "succeeded": 1, "failed": 1}
    assert msgspec.to_builtins(shown(seen({"numWorkers": 5})).workers) == {"desired": 5}


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ({"workers": workers(), "pods": BOTH}, 2),
        ({"workers": workers(), "pods": (running(0), worker(1, {"phase": "Pending"}))}, 1),
        ({"workers": workers(), "pods": (running(0), worker(1, {"phase": "Succeeded"}, node="gpu-3"))}, 1),
        ({"workers": workers(suspend=True), "spec": {"suspend": True}, "pods": (deleted(running(0), asked=50),)}, 1),
        ({"workers": workers(conditions=COMPLETE), "pods": BOTH}, 0),
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
    ended = shown(seen(workers=workers(conditions=COMPLETE)))
    assert after(ended, seen()) == ended
    job = seen().job
    edited = structs.replace(job, metadata=structs.replace(job.metadata, generation=4))
    assert after(ended, structs.replace(seen(), job=edited)) == structs.replace(ended, observed_generation=4)


def test_times_of_a_completed_job_are_its_jobs() -> None:
    job = workers(status={"completionTime": stamp(8000)}, conditions=COMPLETE)
    status = shown(seen(workers=job), 9000)
    assert (status.start_time, status.completion_time, status.duration) == (stamp(0), stamp(8000), "2h13m")
    assert status.failure_reason is None


def test_the_start_of_a_resumed_job_is_its_first_start() -> None:
    first = shown(seen(workers=workers()))
    resumed = after(first, seen(workers=workers(status={"startTime": stamp(3600)})))
    assert resumed.start_time == stamp(0)


def test_a_job_that_waits_has_not_started() -> None:
    assert shown(seen(workers=workers(status={"startTime": ""}, suspend=True), verdict=NO_ROOM)).start_time is None


def test_a_failed_job_says_which_worker_failed_where_and_with_what_and_when_it_was_given_up() -> None:
    pods = (failed(1, 1, at=stamp(51)), failed(0, 3, at=stamp(50), message="no such layer\n"))
    spec = {"failurePolicy": {"restartPolicy": "ExitCode"}}
    status = shown(seen(spec, {"state": "Running", "restartCount": 2}, workers=workers(), pods=pods), 60)
    assert status.failure_reason == status.message
    assert status.failure_reason == (
        "worker 0 on gpu-3 exited with code 3: no such layer (restartPolicy ExitCode: codes 1 to 127 are final)"
    )
    assert (status.completion_time, status.duration, status.restart_count) == (stamp(60), "1m", 2)
    assert holds(status.conditions, "Failed")


def test_a_job_that_fails_before_it_started_lasted_no_time() -> None:
    status = shown(seen(refusal="no such field"))
    assert (status.start_time, status.completion_time, status.duration) == (None, stamp(60), "0s")


def test_a_job_that_completes_after_restarts_forgets_its_last_failure() -> None:
    before = {"state": "Running", "restartCount": 1, "failureReason": "worker 0 broke", "nextRetryTime": stamp(1)}
    status = shown(seen(status=before, workers=workers(name="bert-training-1", conditions=COMPLETE)))
    assert (status.failure_reason, status.next_retry_time, status.restart_count) == (None, None, 1)


def test_what_others_report_of_a_job_is_kept() -> None:
    reported = {"state": "Running", "progress": "45%", "currentEpoch": 9, "metrics": {"loss": 0.25}}
    status = shown(seen(status=reported, workers=workers(), pods=BOTH))
    assert (status.progress, status.current_epoch, status.metrics) == ("45%", 9, {"loss": 0.25})


def test_nothing_is_written_before_somebody_has_looked_for_room() -> None:
    assert shown(seen(verdict=None)) == TrainingJobStatus()


def test_a_message_that_would_not_fit_is_cut() -> None:
    for observed in (seen(refusal="x" * 100_000), seen(obstacle="x" * 100_000)):
        status = shown(observed)
        assert len(status.message or "") == LONGEST
        assert max(len(condition.message) for condition in status.conditions) == LONGEST


def test_a_waiting_job_says_for_how_many_and_why() -> None:
    scarce = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    pods = (unschedulable(0, scarce), unschedulable(1, "rare"), unschedulable(2, scarce))
    job = workers(status={"active": 4, "ready": 1}, size=4)
    assert shown(seen({"numWorkers": 4}, workers=job, pods=pods)).message == f"waiting for 3 of 4 workers: {scarce}"


def test_what_events_tell_is_told_on() -> None:
    told = shown(seen(workers=workers(), told_of_job="their pods are refused: exceeded quota: gpus"))
    assert told.message == "waiting for 2 of 2 workers: their pods are refused: exceeded quota: gpus"


def test_the_course_of_a_new_attempt_is_the_only_one_that_counts_a_restart() -> None:
    broken = seen(status={"state": "Running"}, workers=workers(), pods=(failed(0, 1, at=stamp(50)),))
    course = decide(broken, at(60), TIMING)
    assert isinstance(course, Again)
    for other in (seen(), seen(verdict=NO_ROOM), seen({"suspend": True}), seen(workers=workers(), outdated=True)):
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
    status = shown(seen(status=PACED, workers=workers(status=READY), pods=BOTH))
    assert (status.state, status.estimated_completion_time) == ("Running", stamp(5000))
    assert (status.progress, status.current_epoch, status.metrics) == ("37%", 3, {"loss": 0.5})


@pytest.mark.parametrize(
    "more",
    [
        {"workers": workers(status=READY), "pods": (running(0), failed(1, 1, at=stamp(50)))},
        {"workers": workers(conditions=COMPLETE)},
        {"spec": {"suspend": True}, "workers": workers(suspend=True)},
        {"workers": workers(status=READY), "pods": BOTH, "refusal": "no"},
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
    assert shown(seen(spec, status=status, workers=workers(status=READY), pods=BOTH)).total_epochs == total


def test_a_goal_is_why_a_job_has_ended() -> None:
    goal = {"attempt": 1, "done": 3, "goal": "EarlyStopped", "goalTime": stamp(0), "bestLoss": 0.25, "bestEpoch": 1}
    spec = {"successPolicy": {"earlyStoppingPatience": 2}}
    status = shown(seen(spec, status={**PACED, "epochs": goal}, workers=workers(status=READY), pods=BOTH))
    assert (status.state, reasons(status)["Succeeded"]) == ("Completed", "EarlyStopped")
    assert status.message == (
        "no better loss than 0.25 of epoch 1 came until epoch 3 (successPolicy.earlyStoppingPatience)"
    )
    assert status.failure_reason is None


@pytest.mark.parametrize(("cause", "reason"), [("hang", "NoProgress"), ("infrastructure", "InfrastructureLost")])
def test_what_was_not_heard_is_counted_by_its_class(cause: Any, reason: str) -> None:
    loss = Loss(cause=cause, message="nothing was heard")
    status = shown(seen(status=PACED, workers=workers(status=READY), pods=BOTH, unheard=loss))
    assert (status.state, status.restart_count, status.failure_reason) == ("Restarting", 2, "nothing was heard")
    assert getattr(status.restarts, cause) == 1
    assert reasons(status)["Restarting"] == reason
