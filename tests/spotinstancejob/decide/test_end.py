"""How a job ends, and how it is suspended and resumed."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.decisions import Finish
from holdfast.spotinstancejob.decide.end import deadline, ended, expiry, find_end, find_failure, resume, suspend
from holdfast.spotinstancejob.snapshot import SpotInstanceJobSnapshot
from tests.spotinstancejob.jobs import spot_job
from tests.spotinstancejob.seen import job_of, pod_of, replica, seen
from tests.trainingjobs import at, node, stamp

LIMITED = spot_job(job_spec={"activeDeadlineSeconds": 3600})


def end(observed: SpotInstanceJobSnapshot, now: float = 0) -> tuple[str, str, str] | None:
    found = find_end(observed, at(now))
    return (found.finding.state, found.finding.reason, found.finding.message) if found is not None else None


def test_the_first_success_ends_the_job_also_that_of_an_attempt_that_was_given_up() -> None:
    assert end(seen(replica(0), replica(1))) is None
    done = seen(replica(0), replica(1), jobs=(job_of(0), job_of(1, "Complete")))
    assert end(done) == ("Succeeded", "Completed", "Job bert-r1 has succeeded")
    doomed = seen(replica(0, "Recovering", attempt=1), replica(1), jobs=(job_of(0, "Complete"), job_of(1)))
    assert end(doomed) == ("Succeeded", "Completed", "Job bert-r0 has succeeded")
    finished = ended(doomed, doomed.status, Finish(find_end(doomed, at(0)).finding), at(9))  # type: ignore[union-attr]
    assert [each.phase for each in finished.job_statuses] == ["Succeeded", "Stopped"]


def test_at_the_end_all_that_was_under_way_is_called_off() -> None:
    checkpoint = {"number": 3, "replica": 1, "job": "bert-r1", "reason": "Recovery", "time": stamp(1)}
    status = {"checkpointsInProgress": [checkpoint], "nextCheckpointTime": stamp(99)}
    waiting = {**replica(0, "Recovering", attempt=1), "awaitedCheckpoint": 3}
    observed = seen(waiting, replica(1), replica(2, "Failed"), jobs=(job_of(1, "Complete"),), status=status)
    found = find_end(observed, at(9))
    assert found is not None
    done = ended(observed, observed.status, found, at(9))
    assert (done.completion_time, done.next_checkpoint_time, done.checkpoints_in_progress) == (stamp(9), None, ())
    assert [(each.phase, each.awaited_checkpoint) for each in done.job_statuses] == [
        ("Stopped", 0),
        ("Succeeded", 0),
        ("Failed", 0),
    ]


def test_a_refused_job_fails() -> None:
    assert end(seen(rejected_reason="no such field")) == ("Failed", "Refused", "no such field")


@pytest.mark.parametrize(
    ("status", "now", "is_over"),
    [
        ({}, 3599, False),
        ({}, 3600, True),
        ({"suspendedSeconds": 100}, 3699, False),
        ({"suspendedSeconds": 100}, 3700, True),
        ({"suspendTime": stamp(1000)}, 90000, False),
        ({"startTime": None}, 90000, False),
    ],
)
def test_the_deadline_counts_from_the_first_start_without_suspensions(status: Any, now: float, is_over: bool) -> None:
    observed = seen(replica(0), job=LIMITED, status=status)
    found = end(observed, now)
    assert (found is not None) == is_over
    if found is not None:
        assert found[1] == "DeadlineExceeded"
        assert deadline(observed.job) is not None


def test_without_a_deadline_the_job_may_run_for_ever() -> None:
    assert deadline(seen(replica(0)).job) is None


def test_a_suspended_job_has_no_deadline_to_wake_up_for() -> None:
    """It would come nearer for ever: with little time left, many times a second."""
    assert deadline(seen(replica(0, "Stopped"), job=LIMITED, status={"suspendTime": stamp(3599)}).job) is None


def test_the_job_fails_when_no_replica_runs_and_none_may_start() -> None:
    broken = {**replica(0, "Failed"), "message": "its pod exited with code 1 (after 6 of 6 restarts of backoffLimit)"}
    assert find_failure(seen(broken, replica(1)).status) is None
    assert find_failure(seen(broken, replica(1, "Recovering")).status) is None
    failed = find_failure(seen(replica(1, "Failed"), broken).status)
    assert failed is not None
    assert (failed.finding.state, failed.finding.reason) == ("Failed", "ReplicasFailed")
    assert failed.finding.message.startswith("replica 0: its pod exited with code 1 (after 6 of 6")
    assert find_failure(seen().status) is None


def test_a_job_that_has_ended_goes_after_its_time_to_live() -> None:
    kept = spot_job(spec={"ttlSecondsAfterFinished": 60})
    assert expiry(seen(job=kept, status={"completionTime": stamp(10)}).job) == at(70)
    assert expiry(seen(job=kept).job) is None
    assert expiry(seen(status={"completionTime": stamp(10)}).job) is None


# Suspension.


def test_a_suspended_job_saves_its_running_replicas_before_it_stops() -> None:
    observed = seen(replica(0), replica(1), replica(2, "Recovering"))
    saving = suspend(observed, observed.status, at(5))
    assert saving.suspend_time == stamp(5)
    assert [(each.job, each.reason) for each in saving.checkpoints_in_progress] == [
        ("bert-r0", "Suspend"),
        ("bert-r1", "Suspend"),
    ]
    assert [each.phase for each in saving.job_statuses] == ["Running", "Running", "Recovering"]
    assert suspend(observed, saving, at(9)) == saving
    stopped = suspend(observed, structs.replace(saving, checkpoints_in_progress=()), at(30))
    assert [(each.phase, each.node_name, each.machine) for each in stopped.job_statuses] == [
        ("Stopped", None, None)
    ] * 3
    assert stopped.suspend_time == stamp(5)


def test_nothing_is_saved_where_nothing_runs() -> None:
    observed = seen(replica(0, "Provisioning"), replica(1), nodes=(node("gpu-1", ready=False),))
    assert [each.phase for each in suspend(observed, observed.status, at(5)).job_statuses] == ["Stopped", "Stopped"]


def test_a_replica_that_has_failed_stays_so() -> None:
    observed = seen(replica(0, "Failed"))
    assert suspend(observed, observed.status, at(5)).job_statuses[0].phase == "Failed"


def test_a_resumed_job_goes_on_with_the_next_attempts_and_its_suspension_is_not_counted() -> None:
    observed = seen(
        replica(0, "Stopped"), replica(1, "Failed"), status={"suspendTime": stamp(5), "suspendedSeconds": 7}
    )
    resumed = resume(observed, observed.status, at(15))
    assert (resumed.suspend_time, resumed.suspended_seconds) == (None, 17)
    assert [(each.name, each.phase, each.cause) for each in resumed.job_statuses] == [
        ("bert-r0-1", "Pending", None),
        ("bert-r1", "Failed", None),
    ]


@pytest.mark.parametrize(("started", "seconds"), [(None, 0), (stamp(8), 7)])
def test_what_a_job_waited_before_its_first_start_is_not_taken_from_its_suspension(started: Any, seconds: int) -> None:
    observed = seen(status={"startTime": started, "suspendTime": stamp(5)})
    assert resume(observed, observed.status, at(15)).suspended_seconds == seconds


def test_a_job_that_is_resumed_before_it_has_stopped_runs_on() -> None:
    observed = seen(replica(0), status={"suspendTime": stamp(5)})
    assert resume(observed, observed.status, at(6)).job_statuses[0].phase == "Running"
    never = seen(replica(0), pods=(pod_of(0),))
    assert resume(never, never.status, at(6)) == never.status
