"""Which checkpoints are asked for, what becomes of them, and when the next one is due."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.checkpointbackup import CheckpointBackup, CheckpointBackupStatus
from holdfast.api.core.objects import Pod
from holdfast.api.meta import Condition
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.spotinstancejob.decide.checkpoints import (
    ask_for_checkpoint,
    ask_for_due,
    checkpoints_ahead,
    note_results,
    timeout_s,
)
from holdfast.spotinstancejob.snapshot import TIMING, SpotInstanceJobSnapshot, condition_of
from tests.spotinstancejob.jobs import finished_backup, image, spot_job
from tests.spotinstancejob.machines import condition, template
from tests.spotinstancejob.seen import failed_pod, pod_of, replica, seen
from tests.trainingjobs import at, node, stamp

MINUTE = 60.0


def in_progress(number: int = 4, number_of_replica: int = 0, reason: str = "Interval", asked: float = 0) -> Any:
    job = f"bert-r{number_of_replica}"
    return {"number": number, "replica": number_of_replica, "job": job, "reason": reason, "time": stamp(asked)}


def unfinished(number: int = 4, **status: Any) -> CheckpointBackup:
    done = finished_backup(number)
    return structs.replace(done, status=msgspec.convert(status, CheckpointBackupStatus) if status else None)


def going_away() -> Pod:
    pod = pod_of(0)
    return structs.replace(pod, metadata=structs.replace(pod.metadata, deletion_timestamp=stamp(0)))


def noted(*replicas: Any, now: float = 100, checkpoint: Any = None, **facts: Any) -> SpotInstanceJobStatus:
    status = {"checkpointsInProgress": [checkpoint or in_progress()], "checkpointNumber": 4, **facts.pop("status", {})}
    observed = seen(*(replicas or (replica(0), replica(1))), status=status, **facts)
    return note_results(observed, observed.status, at(now), TIMING)


def saved(status: SpotInstanceJobStatus) -> Condition:
    found = condition_of(status, "Checkpointed")
    assert found is not None
    return found


def test_a_pushed_checkpoint_is_an_image_to_go_on_from() -> None:
    status = noted(backups=(finished_backup(4),))
    assert status.checkpoints_in_progress == ()
    assert (status.last_checkpoint_image or "").startswith(image(4))
    assert status.last_checkpoint_time == stamp(4)
    assert status.job_statuses[0].last_checkpoint_image == status.last_checkpoint_image
    assert status.job_statuses[1].last_checkpoint_image is None
    assert (saved(status).status, saved(status).reason) == ("True", "Saved")


def test_an_older_checkpoint_that_ends_later_does_not_count_as_the_newest() -> None:
    status = noted(
        backups=(finished_backup(4),), status={"lastCheckpointTime": stamp(2), "lastCheckpointImage": image(5)}
    )
    assert (status.last_checkpoint_image, status.last_checkpoint_time) == (image(5), stamp(2))


def test_a_node_whose_clock_is_ahead_does_not_keep_later_checkpoints_from_being_the_newest() -> None:
    ahead = {"lastCheckpointTime": stamp(9000), "lastCheckpointImage": image(3)}
    status = noted(backups=(finished_backup(4),), status=ahead)
    assert status.last_checkpoint_image is not None
    assert status.last_checkpoint_image.startswith(image(4))


def test_its_cost_and_its_duration_are_noted() -> None:
    done = finished_backup(4)
    timed = {"completionTime": stamp(42), "frozenSeconds": 3.25}
    status = msgspec.convert({**msgspec.to_builtins(done.status), **timed}, CheckpointBackupStatus)
    got = noted(backups=(structs.replace(done, status=status),), status={"checkpointCosts": [1, 2, 3, 4, 5]})
    assert list(got.checkpoint_costs) == [2.0, 3.0, 4.0, 5.0, 3.25]
    assert got.job_statuses[0].last_checkpoint_seconds == 42


@pytest.mark.parametrize(
    ("facts", "now", "said"),
    [
        ({"backups": (finished_backup(4, built=(), phase="Failed"),)}, 1, "its CheckpointBackup says no more"),
        ({"backups": (unfinished(phase="Failed", message="no disk"),)}, 1, "no disk"),
        (
            {"backups": (unfinished(conditions=[condition("Failed", "False", "NoAgent")], message="no agent"),)},
            1,
            "no agent",
        ),
        (
            {"backups": (unfinished(phase="ImagePushing", message="pushing"),)},
            630,
            "nothing came of it in time; pushing",
        ),
        ({"backups": (unfinished(),)}, 630, "nothing came of it in time; nobody has begun it"),
        ({"pods": (failed_pod(0),)}, 1, "its pod was gone before it could be saved"),
        ({"pods": ()}, 1, "its pod was gone before it could be saved"),
        ({"pods": (), "backups": (unfinished(),)}, 1, "its pod was gone before it could be saved"),
        ({"pods": (), "backups": (unfinished(message="no pod"),)}, 1, "its pod was gone before it could be saved"),
        ({"pods": (going_away(),)}, 1, "its pod was gone before it could be saved"),
        ({"pods": (going_away(),), "backups": (unfinished(),)}, 1, "its pod was gone before it could be saved"),
        ({}, 630, "its CheckpointBackup was deleted, or could not be made"),
    ],
)
def test_a_failed_one_is_reported_and_whoever_waits_for_it_looks_elsewhere(facts: Any, now: float, said: str) -> None:
    waiting = {**replica(1, "Recovering", attempt=1), "awaitedCheckpoint": 4}
    status = noted(replica(0), waiting, now=now, **facts)
    assert status.checkpoints_in_progress == ()
    assert (status.job_statuses[1].awaited_checkpoint, status.job_statuses[1].source) == (0, None)
    assert (saved(status).status, saved(status).reason) == ("False", "CheckpointFailed")
    assert f"checkpoint 4 of replica 0 failed: {said}" in saved(status).message


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"backups": (unfinished(),)},
        {"backups": (unfinished(phase="ImagePushing"),)},
        {"backups": (unfinished(phase="ImagePushing"),), "pods": ()},
        {"backups": (unfinished(run=1),), "pods": ()},
    ],
)
def test_one_under_way_is_waited_for(facts: Any) -> None:
    assert len(noted(now=629, **facts).checkpoints_in_progress) == 1


def test_a_program_that_saves_nothing_is_told_what_it_has_to_do() -> None:
    failed = unfinished(phase="Failed", message="the training saved nothing")
    assert "have it do so, or create a new job with mode: container" in saved(noted(backups=(failed,))).message
    once = {"lastCheckpointImage": image(1), "lastCheckpointTime": stamp(1)}
    assert "mode: container" not in saved(noted(backups=(failed,), status=once)).message
    frozen = noted(backups=(failed,), status={"checkpointMode": "container"})
    assert "mode: container" not in saved(frozen).message


def test_a_program_that_has_saved_nothing_is_told_so_long_before_the_deadline() -> None:
    waits = (unfinished(phase="Checkpointing", message="the training does not save on request"),)
    said = saved(noted(backups=waits, now=60))
    assert (said.status, said.reason) == ("False", "NothingSaved")
    assert "nothing is saved yet: the training does not save on request; in mode application" in said.message
    observed = seen(replica(0), status={"checkpointsInProgress": [in_progress()]})
    assert at(60) in checkpoints_ahead(observed, observed.status, TIMING)


@pytest.mark.parametrize(
    "facts",
    [
        {"now": 59},
        {"backups": (unfinished(phase="ImagePushing"),)},
        {"status": {"lastCheckpointImage": image(1)}},
        {"status": {"checkpointMode": "container"}},
    ],
)
def test_one_that_saves_is_not(facts: Any) -> None:
    facts = {"backups": (unfinished(phase="Checkpointing"),), "now": 100, **facts}
    assert condition_of(noted(**facts), "Checkpointed") is None


def test_that_one_failed_says_more() -> None:
    failed = {"conditions": [msgspec.to_builtins(condition("Checkpointed", "False", "CheckpointFailed", "no disk"))]}
    assert saved(noted(backups=(unfinished(phase="Checkpointing"),), status=failed)).reason == "CheckpointFailed"


def test_an_image_of_before_is_still_there_after_a_failure() -> None:
    failed = noted(
        backups=(unfinished(phase="Failed"),), status={"lastCheckpointImage": image(1), "lastCheckpointTime": stamp(1)}
    )
    assert (saved(failed).status, saved(failed).reason) == ("True", "CheckpointFailed")


@pytest.mark.parametrize(("saved_replica", "source"), [(0, "survivor"), (1, "repository")])
def test_whoever_waits_for_it_goes_on_from_it(saved_replica: int, source: str) -> None:
    waiting = {**replica(1, "Recovering", attempt=1), "awaitedCheckpoint": 4}
    checkpoint = in_progress(4, saved_replica, "Recovery")
    status = noted(replica(0), waiting, checkpoint=checkpoint, backups=(finished_backup(4, saved_replica),))
    new = status.job_statuses[1]
    assert (new.source, new.awaited_checkpoint, new.restored_from) == (source, 0, status.last_checkpoint_image)


# Asking for one.


def test_numbers_only_grow_and_are_of_the_job() -> None:
    observed = seen(replica(0), replica(1), status={"checkpointNumber": 7})
    first, second = observed.status.job_statuses
    status, number = ask_for_checkpoint(observed.status, first, "bert-r0", "Interval", at(5))
    status, other = ask_for_checkpoint(status, second, "bert-r1", "Recovery", at(5))
    assert (number, other, status.checkpoint_number) == (8, 9, 9)
    assert [each.checkpoint_number for each in status.job_statuses] == [8, 9]
    assert [each.checkpoint_time for each in status.job_statuses] == [stamp(5), stamp(5)]


@pytest.mark.parametrize(
    ("before", "wanted", "after"), [("Interval", "Recovery", "Recovery"), ("Recovery", "Suspend", "Recovery")]
)
def test_one_is_under_way_at_a_time_and_serves_whoever_else_wants_one(before: str, wanted: Any, after: str) -> None:
    observed = seen(replica(0), status={"checkpointsInProgress": [in_progress(4, 0, before)], "checkpointNumber": 4})
    status, number = ask_for_checkpoint(observed.status, observed.status.job_statuses[0], "bert-r0", wanted, at(9))
    assert (number, [each.reason for each in status.checkpoints_in_progress]) == (4, [after])


def test_the_doomed_attempt_and_the_next_one_of_a_replica_are_saved_for_themselves() -> None:
    observed = seen(replica(0, attempt=1), status={"checkpointsInProgress": [in_progress(4)], "checkpointNumber": 4})
    status, number = ask_for_checkpoint(
        observed.status, observed.status.job_statuses[0], "bert-r0-1", "Interval", at(9)
    )
    assert (number, len(status.checkpoints_in_progress)) == (5, 2)


@pytest.mark.parametrize(
    ("reason", "notice", "seconds"), [("Interval", "", 600), ("Recovery", "", 300), ("Notice", "90s", 120)]
)
def test_each_has_its_time(reason: str, notice: str, seconds: int) -> None:
    checkpoint = in_progress(reason=reason)
    observed = seen(replica(0), status={"checkpointsInProgress": [checkpoint]}, template=template(notice=notice))
    assert timeout_s(observed, observed.status.checkpoints_in_progress[0], TIMING) == seconds
    assert at(seconds + 30) in set(checkpoints_ahead(observed, observed.status, TIMING))


# When the next one is due.


def due(observed: SpotInstanceJobSnapshot, now: float) -> tuple[list[int], str | None]:
    """The replicas whose checkpoint is asked for, and when the next one is due."""
    status = ask_for_due(observed, observed.status, at(now))
    return [each.replica for each in status.checkpoints_in_progress], status.next_checkpoint_time


def test_replicas_take_turns_within_each_interval() -> None:
    observed = seen(replica(0), replica(1))
    assert due(observed, 10 * MINUTE) == ([], stamp(15 * MINUTE))
    assert due(observed, 15 * MINUTE) == ([1], stamp(30 * MINUTE))
    assert ask_for_due(observed, observed.status, at(0)).checkpoint_interval_seconds == 1800


def test_after_an_hour_away_replicas_are_saved_one_after_the_other() -> None:
    observed = seen(replica(0), replica(1))
    first, _ = due(observed, 60 * MINUTE)
    assert first == [1]
    asked = ask_for_due(observed, observed.status, at(60 * MINUTE))
    again = structs.replace(observed, job=structs.replace(observed.job, status=asked))
    assert due(again, 60 * MINUTE + 5)[0] == [1]
    frozen = unfinished(1, phase="Checkpointing")
    pushing = structs.replace(again, backups={"bert-r1-c1": unfinished(1, phase="ImageBuilding")})
    still = structs.replace(again, backups={"bert-r1-c1": frozen})
    assert due(still, 60 * MINUTE + 119)[0] == [1]
    assert due(pushing, 60 * MINUTE + 5)[0] == [1, 0]
    assert due(still, 60 * MINUTE + 120)[0] == [1, 0]


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"checkpointTime": stamp(86400)}, {"checkpointNumber": 1}),
        ({}, {"startTime": stamp(86400)}),
        ({"pod": 86400}, {}),
        ({"pod": 86400, "checkpointTime": stamp(86400)}, {"startTime": stamp(86400)}),
    ],
    ids=["the last checkpoint", "the job", "the pod, by its node's clock", "all"],
)
def test_a_clock_that_was_ahead_for_a_moment_keeps_nobody_from_being_saved(facts: Any, status: Any) -> None:
    began = facts.get("pod", 0)
    fields = {name: value for name, value in facts.items() if name != "pod"}
    observed = seen(replica(0, **fields), status=status, pods=(pod_of(started=began),))
    assert due(observed, 60 * MINUTE)[0] == [0]


def test_a_failed_one_is_tried_again_at_its_next_turn() -> None:
    observed = seen(replica(0, checkpointTime=stamp(30 * MINUTE)), replica(1, checkpointTime=stamp(45 * MINUTE)))
    assert due(observed, 46 * MINUTE) == ([], stamp(60 * MINUTE))


@pytest.mark.parametrize(
    "facts",
    [
        {"nodes": (node("gpu-0", taint="holdfast.dev/preempted"),)},
        {"pods": (pod_of(phase="Pending"),)},
        {"pods": (failed_pod(),)},
    ],
)
def test_only_what_runs_and_stays_is_saved(facts: Any) -> None:
    assert due(seen(replica(0), job=spot_job(spec={"replicas": 1}), **facts), 3600 * 24) == ([], None)


def test_replicas_that_wait_are_not_saved() -> None:
    assert due(seen(replica(0, "Recovering"), replica(1, "Starting")), 3600 * 24) == ([], None)


def test_auto_uses_what_checkpoints_cost_and_how_long_machines_live() -> None:
    job = spot_job(checkpoints={"checkpointInterval": "auto"})

    def interval_s(costs: list[float], **facts: Any) -> int | None:
        observed = seen(replica(0), job=job, status={"checkpointCosts": costs}, **facts)
        return ask_for_due(observed, observed.status, at(0)).checkpoint_interval_seconds

    usual = interval_s([10.0])
    assert usual == 537  # √(2 × 10 s × 4 h)
    assert (interval_s([40.0]) or 0) > usual
    short = {"lifetimes": [{"zone": "us-central1-a", "preemptions": 9, "seconds": 1000}]}
    assert (interval_s([10.0], template=template(status=short)) or 0) < usual


def test_the_moments_are_whole_seconds_as_status_has_them() -> None:
    observed = seen(replica(0), replica(1), replica(2), job=spot_job(checkpoints={"checkpointInterval": "100s"}))
    asked = ask_for_due(observed, observed.status, at(20))
    assert asked.next_checkpoint_time is not None
    later = structs.replace(observed, job=structs.replace(observed.job, status=asked))
    (moment,) = {each for each in checkpoints_ahead(later, asked, TIMING) if each > at(20)}
    assert due(later, (moment - at(0)).total_seconds())[0] != []
