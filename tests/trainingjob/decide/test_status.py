"""The status of a TrainingJob: what is seen, and the course that is taken → what is shown."""

import msgspec
import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import is_true
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.trainingjob.decide.snapshot import SPEC_CHANGED, TrainingJobSnapshot
from holdfast.trainingjob.decide.status import CONDITION_OF
from tests.trainingjob.decide.statuses import BOTH, COMPLETE, NO_ROOM, READY, after, reasons, seen, shown
from tests.trainingjobs import deleted, disrupted, failed, owned, running, stamp, unschedulable, worker, workers


@pytest.mark.parametrize(
    ("observed", "state", "reason"),
    [
        (seen(), "Pending", "CreatingWorkers"),
        (seen(blocked_by="Service bert-master is taken"), "Pending", "ChildNotMade"),
        (seen(admission=NO_ROOM), "Pending", "NoRoom"),
        (seen(admission=NO_ROOM, blocked_by="taken"), "Pending", "ChildNotMade"),
        (seen(rejected_reason="no such field"), "Failed", "Refused"),
        (seen(current_job=workers()), "Initializing", "WorkersStarting"),
        (seen(current_job=workers(status={"active": 2, "ready": 1})), "Initializing", "WorkersStarting"),
        (seen(current_job=workers(status=READY)), "Running", "WorkersReady"),
        (seen(current_job=workers(status={"active": 1, "ready": 1, "succeeded": 1})), "Running", "WorkersReady"),
        # One that has just ended is ready no more and not counted yet.
        (
            seen(
                current_job=workers(
                    status={"active": 1, "ready": 1, "uncountedTerminatedPods": {"succeeded": ["uid-of-worker-0"]}}
                ),
            ),
            "Running",
            "WorkersReady",
        ),
        # A gang that runs and has lost nobody goes on, whatever is counted.
        (seen(status={"state": "Running"}, current_job=workers(status={"ready": 1})), "Running", "WorkersReady"),
        (
            seen(
                status={"state": "Running"},
                current_job=workers(status={"ready": 1}),
                pods=(running(0), worker(1, {"phase": "Succeeded"})),
                min_workers=1,
            ),
            "Running",
            "WorkersReady",
        ),
        # An elastic one may really miss some.
        (
            seen(
                status={"state": "Running"},
                current_job=workers(status={"ready": 1}),
                pods=(running(0), worker(1, {"phase": "Pending"})),
                min_workers=1,
            ),
            "Restarting",
            "WorkersLost",
        ),
        (
            seen(
                status={"state": "Running"},
                current_job=workers(status={"ready": 1}),
                pods=(running(0), deleted(running(1), asked=50)),
                min_workers=1,
            ),
            "Restarting",
            "WorkersLost",
        ),
        # Before the first time that all are ready, running is not enough.
        (seen(status={"state": "Initializing"}, current_job=workers(), pods=BOTH), "Initializing", "WorkersStarting"),
        (seen(status={"state": "Pending"}, current_job=workers(), pods=BOTH), "Initializing", "WorkersStarting"),
        (seen(status={"state": "Restarting"}, current_job=workers(), pods=BOTH), "Restarting", "WorkersLost"),
        (seen(status={"state": "Restarting"}, current_job=workers(status=READY), pods=BOTH), "Running", "WorkersReady"),
        # Suspended by its user, and by Kueue.
        (seen({"suspend": True}), "Pending", "CreatingWorkers"),
        (seen({"suspend": True}, current_job=workers(suspend=True), pods=BOTH), "Suspended", "StoppingWorkers"),
        (seen({"suspend": True}, current_job=workers(suspend=True)), "Suspended", "Suspended"),
        (seen({"suspend": True}, queued=True), "Suspended", "Suspended"),
        (seen({"suspend": True}, current_job=workers(), pods=BOTH, queued=True), "Suspended", "StoppingWorkers"),
        (seen(current_job=workers(suspend=True), queued=True), "Pending", "Queued"),
        (seen(status={"restartCount": 1}, current_job=workers(suspend=True), queued=True), "Restarting", "Queued"),
        (seen(current_job=workers(), queued=True), "Initializing", "WorkersStarting"),
        # Broken, and outdated.
        (seen(status={"state": "Running"}), "Restarting", "InfrastructureLost"),
        (
            seen(status={"state": "Running", "startTime": stamp(0)}, current_job=workers(), spec_changed=True),
            "Restarting",
            SPEC_CHANGED,
        ),
        (seen(current_job=None, spec_changed=True), "Pending", "CreatingWorkers"),
        (seen(status={"state": "Restarting"}, old_jobs=(workers(),)), "Restarting", "StoppingWorkers"),
        (seen(status={"state": "Restarting", "nextRetryTime": stamp(70)}), "Restarting", "BackingOff"),
        # A name that is still taken.
        (
            seen(status={"state": "Restarting"}, current_job=deleted(workers(), asked=50, grace_s=0)),
            "Restarting",
            "CreatingWorkers",
        ),
        # The ends.
        (seen(current_job=workers(conditions=COMPLETE)), "Completed", "WorkersSucceeded"),
        (
            seen(current_job=workers(conditions={"Failed": "PodFailurePolicy"}), min_workers=1),
            "Failed",
            "PodFailurePolicy",
        ),
        (seen(current_job=workers(conditions={"Failed": ""}), min_workers=1), "Failed", "WorkersFailed"),
        (
            seen({"failurePolicy": {"backoffLimit": 0}}, current_job=workers(), pods=(failed(0, 1, at=stamp(50)),)),
            "Failed",
            "BackoffLimitExceeded",
        ),
        (
            seen({"failurePolicy": {"activeDeadlineSeconds": 60}}, {"startTime": stamp(0)}, current_job=workers()),
            "Failed",
            "DeadlineExceeded",
        ),
    ],
)
def test_what_is_seen_decides_the_state(observed: TrainingJobSnapshot, state: str, reason: str) -> None:
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
    status = shown(seen(status={"state": "Running"}, current_job=workers(), pods=(pod,)))
    assert (status.state, status.restart_count, reasons(status)["Restarting"]) == ("Restarting", 1, reason)


def test_a_restart_is_written_whole() -> None:
    before = {
        "state": "Running",
        "restartCount": 4,
        "quickRestarts": 1,
        "restarts": {"preemption": 2, "application": 1},
        "startTime": stamp(-1000),
    }
    status = shown(seen(status=before, current_job=workers(), pods=(failed(0, 7, at=stamp(50), message="boom"),)))
    assert msgspec.to_builtins(status) == {
        "observedGeneration": 3,
        "state": "Restarting",
        "message": f"worker 0 on gpu-3 exited with code 7: boom; next try at {stamp(70)} (in 10 s)",
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
    status = shown(seen(status={"state": "Running"}, current_job=workers(), pods=(failed(0, 7, at=stamp(50)),)))
    assert (status.next_retry_time, status.quick_restarts) == (None, 1)
    assert status.message == "worker 0 on gpu-3 exited with code 7; starting again at once"


def test_a_changed_spec_numbers_the_next_attempt_without_a_class_and_ends_the_row() -> None:
    before = {"state": "Running", "startTime": stamp(0), "restartCount": 1, "quickRestarts": 3, "restarts": {"hang": 1}}
    status = shown(seen(status=before, current_job=workers(), pods=BOTH, spec_changed=True))
    assert (status.restart_count, status.quick_restarts, status.next_retry_time) == (2, 0, None)
    assert msgspec.to_builtins(status.restarts) == {"hang": 1}
    assert status.message == "stopping the workers: the spec has changed"


def test_why_a_job_restarts_stays_its_reason_until_it_runs() -> None:
    broken = seen(
        status={"state": "Running"}, current_job=workers(), pods=(failed(0, 137, at=stamp(50), reason="OOMKilled"),)
    )
    old = owned(deleted(running(1), asked=60, grace_s=5), workers())
    again = workers(name="bert-training-1")
    steps = [
        seen(old_jobs=(workers(conditions={"Failed": "X"}),), old_pods=(old,)),
        seen(admission=NO_ROOM),
        seen(blocked_by="quota"),
        seen(current_job=workers(name="bert-training-1", suspend=True), queued=True),
        seen(current_job=again),
    ]
    status = shown(broken)
    for step in steps:
        status = after(status, step)
        assert (status.state, reasons(status)["Restarting"]) == ("Restarting", "OutOfMemory")
    status = after(status, seen(current_job=workers(name="bert-training-1", status=READY), pods=BOTH))
    assert (status.state, is_true(status.conditions, "Restarting")) == ("Running", False)


def test_the_time_of_the_next_try_is_shown_while_it_is_waited_for_and_no_longer() -> None:
    status = msgspec.convert({"state": "Restarting", "nextRetryTime": stamp(70), "restartCount": 1}, TrainingJobStatus)
    stopping = after(status, seen(old_pods=(deleted(running(0), asked=50),)))
    waiting = after(stopping, seen())
    assert (stopping.next_retry_time, waiting.next_retry_time) == (stamp(70), stamp(70))
    assert after(waiting, seen(admission=None), 70) == waiting
    started = after(waiting, seen(current_job=workers()), 70)
    assert started.next_retry_time is None
    assert after(waiting, seen(admission=NO_ROOM), 70).next_retry_time is None


def test_a_gang_that_made_room_says_until_when_and_why_even_when_its_workers_have_stopped() -> None:
    half = (running(0), unschedulable(1, "0/3 nodes are available"))
    status = shown(seen(status={"state": "Initializing"}, current_job=workers(), pods=half), 600)
    assert (status.state, status.next_retry_time) == ("Pending", stamp(1200))
    assert status.message is not None
    assert status.message.startswith("not all workers found a node within 10m")
    asleep = workers(suspend=True)
    stopping = after(status, seen(current_job=asleep, pods=(deleted(running(0), asked=600),)), 601)
    stopped = after(stopping, seen(current_job=asleep), 700)
    for later in (stopping, stopped):
        assert (later.state, later.message, later.next_retry_time) == ("Pending", status.message, stamp(1200))
    assert stopped.resources is not None
    assert stopped.resources.workers == 0


# Conditions


def test_a_condition_holds_exactly_in_its_state() -> None:
    run = shown(seen(current_job=workers(status=READY)))
    end = after(run, seen(current_job=workers(conditions=COMPLETE)))
    assert is_true(run.conditions, "Running")
    assert {condition.type for condition in run.conditions} == {"Created", "Running"}
    assert {kind: is_true(end.conditions, kind) for kind in ("Created", "Running", "Succeeded", "Failed")} == {
        "Created": True,
        "Running": False,
        "Succeeded": True,
        "Failed": False,
    }


def test_created_is_false_while_a_name_is_taken_and_stays_true_once_the_workers_were_made() -> None:
    blocked = shown(seen(blocked_by="taken"))
    still_blocked = after(blocked, seen(blocked_by="taken"))
    made = after(blocked, seen(current_job=workers()))
    gone = after(made, seen())
    assert [is_true(each.conditions, "Created") for each in (blocked, still_blocked, made, gone)] == [
        False,
        False,
        True,
        True,
    ]
    assert reasons(blocked)["Created"] == "ChildNotMade"
    assert reasons(made)["Created"] == "ChildrenMade"


def test_an_obstacle_does_not_change_the_state_of_a_job_that_runs() -> None:
    status = shown(seen(status={"state": "Running"}, current_job=workers(), pods=BOTH, blocked_by="Service is taken"))
    assert (status.state, status.message) == ("Running", "Service is taken")
    assert is_true(status.conditions, "Running")


def test_the_time_of_a_transition_stays_while_the_status_of_the_condition_does() -> None:
    first = shown(seen(current_job=workers()), 60)
    second = after(first, seen(current_job=workers(), pods=(unschedulable(0, "0/1 nodes are available"),)), 90)
    third = after(second, seen(current_job=workers(status=READY)), 120)
    times = [
        next(each.last_transition_time for each in status.conditions if each.type == "Running")
        for status in (first, second, third)
    ]
    assert times == [stamp(60), stamp(60), stamp(120)]
    assert second.message != first.message


def test_a_second_look_at_the_same_facts_changes_nothing() -> None:
    observed = seen(current_job=workers(status={"active": 2, "ready": 1}))
    first = shown(observed)
    assert after(first, observed, 90) == first


# Suspension


def test_the_time_of_each_suspension_is_added_up_when_it_ends() -> None:
    asleep = seen({"suspend": True}, current_job=workers(suspend=True))
    first = shown(asleep, 60)
    assert first.suspended_seconds == 0
    assert after(first, asleep, 90) == first
    awake = after(first, seen(current_job=workers(), pods=BOTH), 100)
    assert (awake.state, awake.suspended_seconds) == ("Initializing", 40)
    again = after(after(awake, asleep, 200), seen(current_job=workers()), 205)
    assert again.suspended_seconds == 45
    assert after(again, seen(current_job=workers()), 300).suspended_seconds == 45


def test_a_job_that_waits_for_its_workers_to_stop_is_still_suspended() -> None:
    asleep = shown(seen({"suspend": True}, current_job=workers(suspend=True), pods=BOTH), 60)
    assert asleep.message == "waiting for 2 workers to stop"
    last = shown(seen({"suspend": True}, current_job=workers(suspend=True), pods=BOTH[:1]), 60)
    assert last.message == "waiting for 1 worker to stop"
    resumed = after(asleep, seen(current_job=workers(suspend=True), pods=(deleted(running(0), asked=60),)), 70)
    assert (resumed.state, resumed.suspended_seconds) == ("Suspended", 0)
    assert is_true(resumed.conditions, "Suspended")


def test_a_suspended_job_tells_of_all_workers_that_still_stop() -> None:
    asleep = workers(name="bert-training-1", suspend=True)
    observed = seen({"suspend": True}, {"state": "Restarting"}, current_job=asleep, old_pods=BOTH)
    assert (shown(observed).state, shown(observed).message) == ("Suspended", "waiting for 2 workers to stop")


def test_a_job_suspended_while_it_waits_for_its_next_try_says_so() -> None:
    before = {"state": "Restarting", "restartCount": 1, "nextRetryTime": stamp(300)}
    status = shown(seen({"suspend": True}, before, current_job=workers(name="bert-training-1", suspend=True)))
    assert (status.state, status.next_retry_time) == ("Suspended", None)
