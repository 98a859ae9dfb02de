"""When the workers of a TrainingJob may start: once there is room for all, unless it is suspended or queued."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.decisions import StateReason, Wait
from holdfast.scheduling.gang import AdmissionDecision
from holdfast.trainingjob.decide.decision import (
    DeleteQueuedJob,
    EnsureJob,
    StartNewAttempt,
    bind_deadline,
    why_not_all_started,
)
from holdfast.trainingjob.decide.snapshot import TIMING
from tests.trainingjob.decide.decisions import BOTH, LOST, NO_ROOM, ROOM, course, held, seen
from tests.trainingjobs import at, deleted, failed, running, stamp, unschedulable, worker, workers

# Admission


def test_nothing_is_made_and_nothing_said_before_somebody_has_looked_for_room() -> None:
    for state in ("", "Pending", "Restarting"):
        assert course(seen(state, admission=None)) == Wait(None)


@pytest.mark.parametrize(
    ("state", "status", "shown"),
    [
        ("", {}, "Pending"),
        ("Pending", {}, "Pending"),
        ("Pending", {"restartCount": 1}, "Restarting"),
        ("Restarting", {}, "Restarting"),
        ("Suspended", {}, "Pending"),
        ("Suspended", {"restartCount": 2}, "Restarting"),
    ],
)
def test_a_gang_without_room_is_made_and_held_back(state: str, status: dict[str, Any], shown: str) -> None:
    found = course(seen(state, status=status, admission=NO_ROOM))
    assert found == EnsureJob(True, StateReason(shown, "NoRoom", NO_ROOM.message))


def test_a_gang_with_room_goes() -> None:
    assert course(seen("Pending", current_job=workers(suspend=True))) == EnsureJob(suspended=False)
    assert course(seen("")) == EnsureJob(suspended=False)


def test_a_gang_that_has_started_needs_no_room_any_more() -> None:
    for verdict in (None, NO_ROOM):
        assert course(seen("Running", admission=verdict, current_job=workers(), pods=BOTH)) == EnsureJob(
            suspended=False
        )


HALF = (running(0), unschedulable(1, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))


def test_a_gang_that_does_not_get_all_its_nodes_in_time_makes_room() -> None:
    observed = seen("Initializing", current_job=workers(status={"ready": 1}), pods=HALF)
    assert course(observed, 599) == EnsureJob(suspended=False)
    message = (
        "not all workers found a node within 10m, so the others made room again; "
        "waiting for 1 of 2 workers: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    assert course(observed, 600) == EnsureJob(True, StateReason("Pending", "NotBound", message), at(1200))


@pytest.mark.parametrize(
    "pods",
    [
        BOTH,
        (running(0), worker(1, {"phase": "Pending"}, node="gpu-4")),
        (running(0), worker(1, {"phase": "Succeeded"}, node="gpu-4")),
    ],
)
def test_a_gang_that_has_its_nodes_may_take_its_time(pods: tuple[Pod, ...]) -> None:
    observed = seen("Initializing", current_job=workers(), pods=pods)
    assert bind_deadline(observed, TIMING) is None
    assert course(observed, 10**6) == EnsureJob(suspended=False)


@pytest.mark.parametrize(
    ("state", "more"),
    [
        ("Running", {}),
        ("Initializing", {"current_job": None}),
        ("Initializing", {"current_job": workers(suspend=True)}),
        ("Initializing", {"current_job": workers(status={"startTime": ""})}),
        # It trains with those that it has.
        ("Restarting", {"min_workers": 1}),
        ("Initializing", {"min_workers": 1}),
    ],
)
def test_nobody_else_is_held_to_the_time_for_binding(state: str, more: dict[str, Any]) -> None:
    observed = seen(state, **{"current_job": workers(), "pods": HALF, **more})
    assert bind_deadline(observed, TIMING) is None


HELD_OFF = {"nextRetryTime": stamp(1200), "message": "not all workers found a node"}


def test_a_gang_that_made_room_is_held_off_and_says_why_until_its_time_has_come() -> None:
    stopping = (deleted(running(0), asked=600),)
    for pods in (stopping, ()):
        observed = seen("Pending", status=HELD_OFF, current_job=workers(suspend=True), pods=pods)
        finding = StateReason("Pending", "NotBound", "not all workers found a node")
        assert course(observed, 1199) == EnsureJob(True, finding, at(1200))
    assert course(observed, 1200) == EnsureJob(suspended=False)


def test_a_held_off_gang_can_be_suspended() -> None:
    observed = seen("Pending", spec={"suspend": True}, status=HELD_OFF, current_job=workers(suspend=True))
    assert course(observed, 700) == EnsureJob(suspended=True)


# Suspension


def test_a_suspended_job_is_kept_so_without_asking_for_room() -> None:
    for state in ("", "Running", "Suspended"):
        for job in (None, workers(), workers(suspend=True)):
            if state == "Running" and job is None:
                continue
            observed = seen(state, spec={"suspend": True}, current_job=job, admission=None)
            assert course(observed) == EnsureJob(suspended=True)


def test_a_job_goes_on_when_its_old_workers_have_stopped() -> None:
    asleep = workers(suspend=True)
    stopping = seen("Suspended", current_job=asleep, pods=(deleted(running(0), asked=50),))
    assert held(stopping) == StateReason(
        "Suspended", "StoppingWorkers", "waiting for pod bert-training-0-abcde to stop"
    )
    stopped = structs.replace(stopping, pods=(deleted(failed(0, 143, at=stamp(55)), asked=50),))
    assert course(stopped) == EnsureJob(suspended=False)


@pytest.mark.parametrize("queued", [False, True])
def test_a_job_whose_suspended_worker_is_stuck_goes_on_in_a_new_attempt(queued: bool) -> None:
    """The Job would wait for that pod for ever before it makes another in its place."""
    pods = (deleted(running(0), asked=50),)
    observed = seen("Suspended", current_job=workers(suspend=True), pods=pods, nodes=LOST, queued=queued)
    assert held(observed, 139).reason == "StoppingWorkers"
    found = course(observed, 140)
    assert isinstance(found, StartNewAttempt)
    assert found.retry is not None
    assert (found.retry.failure.cause, found.retry.failure.message) == (
        "infrastructure",
        "a worker that was suspended is lost with its node",
    )


def test_a_worker_that_is_stuck_does_not_matter_while_the_job_is_suspended() -> None:
    observed = seen(
        "Suspended",
        spec={"suspend": True},
        current_job=workers(suspend=True),
        pods=(deleted(running(0), asked=50),),
        nodes=LOST,
    )
    assert course(observed, 10**6) == EnsureJob(suspended=True)


def test_a_job_whose_name_is_still_taken_by_a_deleted_one_waits_for_its_workers() -> None:
    leaving = deleted(workers(), asked=50, grace_s=0)
    observed = seen("Suspended", current_job=leaving, pods=(deleted(running(0), asked=50),), queued=True)
    assert held(observed).message == "waiting for pod bert-training-0-abcde to stop"
    assert isinstance(course(structs.replace(observed, nodes=LOST), 140), StartNewAttempt)


@pytest.mark.parametrize(("claim", "hint"), [("data", "; see what kubectl describe pvc data says"), ("", "")])
def test_a_claim_that_is_in_the_way_is_named(claim: str, hint: str) -> None:
    told = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims"
    observed = seen("Initializing", current_job=workers(), pods=(unschedulable(0, told),), claim=claim)
    assert why_not_all_started(observed, 2) == f"waiting for 2 of 2 workers: {told}{hint}"


# Kueue


@pytest.mark.parametrize("verdict", [None, ROOM, NO_ROOM])
@pytest.mark.parametrize("job", [None, workers(), workers(suspend=True)], ids=["not made", "let go", "held back"])
def test_kueue_alone_decides_when_a_queued_job_starts(verdict: AdmissionDecision | None, job: Any) -> None:
    for state in ("", "Pending", "Initializing", "Restarting", "Running", "Suspended"):
        if job is None and state in ("Initializing", "Running"):
            continue  # then it was lost
        assert course(seen(state, queued=True, admission=verdict, current_job=job)) == EnsureJob(suspended=True)


def test_a_queued_job_is_not_held_to_the_time_for_binding_nor_held_off() -> None:
    observed = seen("Initializing", queued=True, current_job=workers(), pods=HALF)
    assert course(observed, 10**6) == EnsureJob(suspended=True)


@pytest.mark.parametrize("state", ["", "Pending", "Running", "Suspended"])
def test_a_queued_job_that_is_suspended_leaves_the_queue(state: str) -> None:
    for job in (workers(), workers(suspend=True), deleted(workers(), asked=50, grace_s=0), None):
        assert course(seen(state, spec={"suspend": True}, queued=True, current_job=job, pods=())) == DeleteQueuedJob()


def test_workers_that_kueue_takes_back_are_not_lost() -> None:
    pods = (deleted(running(0), asked=50), deleted(failed(1, 143, at=stamp(55)), asked=50))
    observed = seen("Running", queued=True, current_job=workers(suspend=True), pods=pods)
    assert held(observed) == StateReason("Pending", "StoppingWorkers", "waiting for pod bert-training-0-abcde to stop")


def test_a_queued_gang_that_broke_queues_again() -> None:
    broken = seen("Running", queued=True, current_job=workers(), pods=(failed(0, 1, at=stamp(50)),))
    assert isinstance(course(broken), StartNewAttempt)


# A store that another job uses


def test_a_job_whose_store_another_one_uses_is_held_and_one_that_runs_is_not_stopped() -> None:
    said = "waiting for TrainingJob ml/first to end"
    for state, shown in (("", "Pending"), ("Pending", "Pending"), ("Restarting", "Restarting")):
        assert held(seen(state, store_in_use=said)) == StateReason(shown, "StoreInUse", said)
    assert course(seen("Running", store_in_use=said, current_job=workers(), pods=BOTH)) == EnsureJob(suspended=False)
    assert course(seen("Pending", spec={"suspend": True}, store_in_use=said)) == EnsureJob(suspended=True)
