"""What follows a loss: the next attempt, and where its state comes from."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.spotinstancejob_status import Cause, ReplicaStatus, SpotInstanceJobStatus
from holdfast.pods.failure import WorkerFailure
from holdfast.spotinstancejob.decide.failure import LostAttempt
from holdfast.spotinstancejob.decide.recovery import (
    choose_sources,
    drop_missing_images,
    find_survivor,
    goes_back,
    recover,
    set_aside,
    wants_repository,
)
from holdfast.spotinstancejob.images import checkpoint_of
from holdfast.spotinstancejob.snapshot import TIMING, RepositoryView, SpotInstanceJobSnapshot
from tests.spotinstancejob.jobs import finished_backup, spot_job
from tests.spotinstancejob.machines import READY, condition, template
from tests.spotinstancejob.seen import pod_of, replica, seen, serving
from tests.trainingjobs import at, node, stamp

PREEMPTED = WorkerFailure(cause="preemption", message="machine bert-r0-0-m0 was preempted")
CRASHED = WorkerFailure(cause="application", message="its pod exited with code 1")
OOM = WorkerFailure(cause="outOfMemory", message="its pod ran out of memory")
NOTICE = [*READY, condition("Preempted", "True", "PreemptionNotice")]
OLD_IMAGE, NEW_IMAGE = "registry.example.com/team/checkpoints:old", "registry.example.com/team/checkpoints:new"


def after(observed: SpotInstanceJobSnapshot, *attempts: LostAttempt, now: float = 100) -> SpotInstanceJobStatus:
    return recover(observed, observed.status, attempts, at(now), TIMING)


def lost(
    observed: SpotInstanceJobSnapshot, number: int = 0, failure: WorkerFailure = PREEMPTED, **more: Any
) -> LostAttempt:
    return LostAttempt(replica=observed.status.job_statuses[number], failure=failure, **more)


def test_one_pass_has_the_next_attempt_its_class_and_a_checkpoint_of_the_survivor() -> None:
    observed = seen(replica(0, machine="bert-r0-0-m0", machineTry=1), replica(1))
    status = after(observed, lost(observed))
    new = status.job_statuses[0]
    assert (new.name, new.phase, new.cause, new.message) == (
        "bert-r0-1",
        "Recovering",
        "preemption",
        "machine bert-r0-0-m0 was preempted",
    )
    assert (new.node_name, new.machine, new.machine_try, new.lost_time) == (None, None, 0, stamp(100))
    (asked,) = status.checkpoints_in_progress
    assert (asked.number, asked.replica, asked.job, asked.reason) == (1, 1, "bert-r1", "Recovery")
    assert new.awaited_checkpoint == 1
    assert status.restarts is not None
    assert status.restarts.preemption == 1


def test_an_attempt_that_never_ran_has_lost_nothing_since_the_one_before() -> None:
    observed = seen(replica(0, "Starting", attempt=1, lostTime=stamp(40)))
    assert after(observed, lost(observed)).job_statuses[0].lost_time == stamp(40)
    ran = seen(replica(0, "Running", attempt=1, lostTime=stamp(40)))
    assert after(ran, lost(ran)).job_statuses[0].lost_time == stamp(100)


def test_the_survivor_is_the_one_that_has_run_longest_on_a_node_that_stays() -> None:
    observed = seen(
        replica(0),
        replica(1),
        replica(2),
        replica(3, "Starting"),
        pods=(pod_of(0, started=10), pod_of(1, started=30), pod_of(2, started=20), pod_of(3, phase="Pending")),
    )
    assert (find_survivor(observed, observed.status) or observed.status.job_statuses[3]).replica == 0
    marked = structs.replace(observed, nodes={**observed.nodes, "gpu-0": node("gpu-0", taint="holdfast.dev/preempted")})
    assert (find_survivor(marked, marked.status) or observed.status.job_statuses[3]).replica == 2
    told = structs.replace(marked, machines={"m": serving(2, conditions=NOTICE)})
    assert (find_survivor(told, told.status) or observed.status.job_statuses[3]).replica == 1


def test_when_all_are_lost_at_once_nobody_is_saved() -> None:
    observed = seen(replica(0), replica(1))
    status = after(observed, lost(observed, 0), lost(observed, 1))
    assert status.checkpoints_in_progress == ()
    assert [each.awaited_checkpoint for each in status.job_statuses] == [0, 0]


def test_two_that_are_lost_go_on_from_one_checkpoint_of_the_third() -> None:
    observed = seen(replica(0), replica(1), replica(2), job=spot_job(spec={"replicas": 3}))
    status = after(observed, lost(observed, 0), lost(observed, 1))
    assert len(status.checkpoints_in_progress) == 1
    assert [each.awaited_checkpoint for each in status.job_statuses] == [1, 1, 0]


def test_a_checkpoint_of_the_survivor_that_is_under_way_is_used() -> None:
    under_way = {"number": 6, "replica": 1, "job": "bert-r1", "reason": "Interval", "time": stamp(95)}
    observed = seen(replica(0), replica(1), status={"checkpointNumber": 6, "checkpointsInProgress": [under_way]})
    status = after(observed, lost(observed))
    assert [(each.number, each.reason) for each in status.checkpoints_in_progress] == [(6, "Recovery")]
    assert status.job_statuses[0].awaited_checkpoint == 6


SAVED: dict[str, Any] = {"lastCheckpointImage": OLD_IMAGE, "lastCheckpointTime": stamp(10)}


@pytest.mark.parametrize(
    ("seconds", "notice", "is_saved"),
    [
        (14, "", True),
        (15, "", False),
        # Two minutes before the power-off signal, and what Compute Engine leaves after it.
        (74, "2m", True),
        (75, "2m", False),
        (None, "2m", False),
    ],
)
def test_the_doomed_replica_is_saved_too_where_its_last_checkpoint_took_less_than_half_of_the_notice(
    seconds: int | None, notice: str, is_saved: bool
) -> None:
    saved: dict[str, Any] = {**SAVED, "lastCheckpointSeconds": seconds} if seconds is not None else {}
    observed = seen(replica(0, **saved), replica(1), template=template(notice=notice))
    status = after(observed, lost(observed, is_announced=True))
    reasons = [each.reason for each in status.checkpoints_in_progress]
    assert reasons == (["Notice", "Recovery"] if is_saved else ["Recovery"])
    assert status.job_statuses[0].awaited_checkpoint == len(reasons)


def test_without_a_survivor_the_save_on_notice_is_waited_for() -> None:
    observed = seen(replica(0, **SAVED, lastCheckpointSeconds=5), job=spot_job(spec={"replicas": 1}))
    status = after(observed, lost(observed, is_announced=True))
    assert [each.reason for each in status.checkpoints_in_progress] == ["Notice"]
    assert status.job_statuses[0].awaited_checkpoint == 1


def test_what_is_gone_already_is_not_saved() -> None:
    observed = seen(replica(0, **SAVED, lastCheckpointSeconds=5), replica(1))
    status = after(observed, lost(observed, is_announced=False))
    assert [each.reason for each in status.checkpoints_in_progress] == ["Recovery"]


@pytest.mark.parametrize(("failure", "counted"), [(CRASHED, "application"), (OOM, "out_of_memory")])
def test_failures_of_the_training_use_up_the_limit_of_all_replicas_together_and_keep_the_machine(
    failure: WorkerFailure, counted: str
) -> None:
    job = spot_job(job_spec={"backoffLimit": 2})
    restarts = {"outOfMemory": 1, "preemption": 7, "infrastructure": 7}
    observed = seen(replica(0, machine="bert-r0-0-m0"), replica(1), job=job, status={"restarts": restarts})
    status = after(observed, lost(observed, failure=failure))
    assert (status.job_statuses[0].phase, status.job_statuses[0].machine) == ("Recovering", "bert-r0-0-m0")
    assert getattr(status.restarts, counted) == (2 if counted == "out_of_memory" else 1)
    assert status.checkpoints_in_progress == ()  # nobody is frozen for a failure of the training
    used_up = seen(replica(0), replica(1), job=job, status={"restarts": {"outOfMemory": 1, "application": 1}})
    failed = after(used_up, lost(used_up, failure=failure)).job_statuses[0]
    assert (failed.phase, failed.attempt, failed.machine) == ("Failed", 0, None)
    assert failed.message == f"{failure.message} (after 2 of 2 restarts of backoffLimit)"


def test_what_would_fail_in_the_same_way_is_not_tried_again() -> None:
    observed = seen(replica(0))
    failed = after(observed, lost(observed, failure=structs.replace(CRASHED, permanent=True))).job_statuses[0]
    assert failed.phase == "Failed"
    assert "in the same way" in (failed.message or "")


@pytest.mark.parametrize(
    ("attempt", "ran_s", "pause_s"),
    [(0, 5, None), (1, 5, 10), (2, 5, 20), (9, 5, 300), (9, 599, 300), (9, 600, None)],
)
def test_failures_in_a_row_are_followed_by_growing_pauses(attempt: int, ran_s: float, pause_s: float | None) -> None:
    observed = seen(replica(0, attempt=attempt), pods=(pod_of(0, attempt=attempt, started=1000 - ran_s),))
    new = after(observed, lost(observed, failure=CRASHED), now=1000).job_statuses[0]
    assert new.retry_time == (stamp(1000 + pause_s) if pause_s is not None else None)


@pytest.mark.parametrize(("cause", "is_paused"), [("preemption", False), ("infrastructure", True)])
def test_however_often_machines_are_taken_away_the_next_attempt_starts_at_once(cause: Cause, is_paused: bool) -> None:
    observed = seen(replica(0, attempt=20), pods=(pod_of(0, attempt=20, started=500),))
    failure = WorkerFailure(cause=cause, message="it is gone")
    assert bool(after(observed, lost(observed, failure=failure), now=1000).job_statuses[0].retry_time) == is_paused


# Where the state comes from.


def view(*numbers: int, problem: str = "") -> RepositoryView:
    backups = (finished_backup(number) for number in sorted(numbers, reverse=True))
    found = (checkpoint_of(spot_job(), backup) for backup in backups)
    return RepositoryView(asked_at=at(100), checkpoints=tuple(each for each in found if each), problem=problem)


def chosen(image_number: int | None, **facts: Any) -> tuple[str | None, bool]:
    """The source, and whether the image is of the checkpoint with this number."""
    status = {"checkpointNumber": 9, **facts.pop("status", {})}
    waiting = {**replica(0, "Recovering", attempt=1), "lostTime": stamp(50), **facts.pop("replica", {})}
    observed = seen(waiting, status=status, **facts)
    got: ReplicaStatus = choose_sources(observed, observed.status).job_statuses[0]
    return got.source, (f"-{image_number:06d}-" in (got.restored_from or "")) if image_number else not got.restored_from


def test_the_newest_valid_image_of_the_repository_is_chosen() -> None:
    assert chosen(7, repository=view(3, 7, 5)) == ("repository", True)


def test_nothing_is_chosen_before_the_registry_has_answered_and_while_a_survivor_is_saved() -> None:
    assert chosen(None, repository=None) == (None, True)
    assert chosen(None, repository=view(3), replica={"awaitedCheckpoint": 9}) == (None, True)


def test_without_any_image_the_training_begins_anew() -> None:
    assert chosen(None, repository=view()) == ("start", True)
    assert chosen(None, status={"checkpointNumber": 0}) == ("start", True)


def test_an_image_that_failed_twice_is_set_aside_and_the_one_before_is_used() -> None:
    newest = choose_sources(
        observed := seen(
            {**replica(0, "Recovering", attempt=1), "lostTime": stamp(50)},
            status={"checkpointNumber": 9},
            repository=view(3, 7),
        ),
        observed.status,
    ).job_statuses[0]
    for field in ("restore", "application"):
        failures = [{"image": newest.restored_from, field: 2}]
        assert chosen(3, repository=view(3, 7), status={"imageFailures": failures}) == ("repository", True)
        once = [{"image": newest.restored_from, field: 1}]
        assert chosen(7, repository=view(3, 7), status={"imageFailures": once}) == ("repository", True)


def test_while_the_registry_is_away_what_is_known_is_used() -> None:
    away = view(problem="the registry does not answer")
    assert chosen(4, repository=away, backups=(finished_backup(4), finished_backup(2))) == ("repository", True)
    known = chosen(None, repository=away, status={"lastCheckpointImage": OLD_IMAGE})
    assert known == ("repository", False)
    assert chosen(None, repository=away) == ("start", True)


def test_the_registry_is_asked_for_what_is_newer_than_the_loss_and_the_last_checkpoint() -> None:
    waiting = {**replica(0, "Recovering", attempt=1), "lostTime": stamp(50)}
    assert wants_repository(seen(waiting, status={"checkpointNumber": 3}).status) == at(50)
    saved = {"checkpointNumber": 3, "lastCheckpointTime": stamp(70)}
    assert wants_repository(seen(waiting, status=saved).status) == at(70)
    assert wants_repository(seen(waiting, status={"checkpointNumber": 0}).status) is None
    assert wants_repository(seen({**waiting, "awaitedCheckpoint": 3}, status=saved).status) is None
    assert wants_repository(seen(replica(0), status=saved).status) is None


def test_an_image_that_was_deleted_meanwhile_is_chosen_anew() -> None:
    waiting = {
        **replica(0, "Starting", attempt=1),
        "cause": "preemption",
        "source": "survivor",
        "restoredFrom": OLD_IMAGE,
    }
    observed = seen(waiting, jobs=(), pods=(), missing_images=frozenset({OLD_IMAGE}))
    new = drop_missing_images(observed, observed.status).job_statuses[0]
    assert (new.phase, new.source, new.restored_from, new.node_name) == ("Recovering", None, None, "gpu-0")
    made = seen(waiting, missing_images=frozenset({OLD_IMAGE}))
    assert drop_missing_images(made, made.status) == made.status


def test_two_failures_of_its_own_from_one_image_and_two_failed_restores_set_it_aside() -> None:
    status: SpotInstanceJobStatus | None = None
    for failure, more in ((CRASHED, {}), (PREEMPTED, {"image_is_unusable": True})):
        failures: list[Any] = []
        for _ in range(2):
            observed = seen(replica(0, restoredFrom=NEW_IMAGE), status={"imageFailures": failures})
            status = after(observed, lost(observed, failure=failure, **more))
            failures = [structs.asdict(each) for each in status.image_failures]
            failures = [
                {"image": each["image"], "restore": each["restore"], "application": each["application"]}
                for each in failures
            ]
        assert status is not None
        assert set_aside(status) == {NEW_IMAGE}


def test_for_an_image_that_does_not_restore_nobody_is_frozen_and_the_machine_is_kept() -> None:
    observed = seen(replica(0, restoredFrom=NEW_IMAGE, machine="bert-r0-0-m0"), replica(1))
    status = after(observed, lost(observed, image_is_unusable=True))
    assert (status.checkpoints_in_progress, status.job_statuses[0].machine) == ((), "bert-r0-0-m0")


def test_as_long_as_an_image_is_set_aside_no_replica_goes_on_from_what_it_has_in_the_store() -> None:
    def is_exact(*failures: dict[str, Any]) -> bool:
        return goes_back(seen(replica(0), status={"imageFailures": list(failures)}).status)

    assert not is_exact()
    assert not is_exact({"image": NEW_IMAGE, "application": 1, "restore": 1})
    assert is_exact({"image": NEW_IMAGE, "application": 2}, {"image": OLD_IMAGE, "application": 1})


def test_a_preemption_says_nothing_about_the_image() -> None:
    observed = seen(replica(0, restoredFrom=NEW_IMAGE))
    assert after(observed, lost(observed)).image_failures == ()
