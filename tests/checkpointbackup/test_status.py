"""What the status says, for every action."""

from typing import Any

import msgspec
import pytest

from holdfast.api.backup_runs import BackupProgress
from holdfast.api.checkpointbackup import CheckpointBackup, CheckpointBackupStatus
from holdfast.checkpointbackup.decision import decide
from holdfast.checkpointbackup.snapshot import TIMING, CheckpointBackupSnapshot, with_backup
from holdfast.checkpointbackup.status import next_status
from holdfast.decisions import MAX_MESSAGE
from tests.checkpointbackup.backups import BEGUN, IMAGE, NODE, POD_UID, backup, node, pod, scheduled, seen
from tests.trainingjobs import UID, at, stamp

JSON = dict[str, Any]
STARTED = f"run 1 has begun and waits for the agent of node {NODE}"


def settled(observed: CheckpointBackupSnapshot, seconds: float = 10) -> CheckpointBackupStatus:
    """The status after all actions that are decided on."""
    for action in decide(observed, at(seconds), TIMING):
        status = next_status(observed, action, at(seconds))
        body = {**msgspec.to_builtins(observed.backup), "status": msgspec.to_builtins(status)}
        observed = with_backup(observed, msgspec.convert(body, CheckpointBackup))
    return observed.status


def shown(observed: CheckpointBackupSnapshot, seconds: float = 10) -> JSON:
    """Without its conditions."""
    body: JSON = msgspec.to_builtins(settled(observed, seconds))
    return {name: value for name, value in body.items() if name not in ("conditions", "observedGeneration")}


def conditions(status: CheckpointBackupStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in status.conditions}


def test_a_run_that_begins_leaves_nothing_of_the_last_but_what_it_took() -> None:
    last = {
        **BEGUN,
        "phase": "CompletedWithError",
        "nextCheckpointTime": stamp(0),
        "completionTime": stamp(-900),
        "lastCheckpointTime": stamp(-950),
        "builtImages": [IMAGE],
        "frozenSeconds": 1.5,
        "bytes": 4096,
        "missedRuns": 2,
        "message": "container b: no",
    }
    found = shown(seen(scheduled(status=last)))
    assert found == {
        "run": 2,
        "startTime": stamp(10),
        "nodeName": NODE,
        "podUID": POD_UID,
        "mode": "container",
        "modeReason": "auto: pod trainer has no sidecar of holdfast, and nothing that is known would be lost",
        "nextCheckpointTime": stamp(1800),
        "missedRuns": 2,
        "lastCheckpointTime": stamp(-950),
        "frozenSeconds": 1.5,
        "bytes": 4096,
        "message": f"run 2 has begun and waits for the agent of node {NODE}",
    }


def test_the_conditions_of_a_run_that_begins() -> None:
    assert conditions(settled(seen(backup()))) == {"Completed": ("False", "Started"), "Failed": ("False", "Started")}
    with_schedule = settled(seen(scheduled(status={"nextCheckpointTime": stamp(0)})))
    assert conditions(with_schedule)["Scheduled"] == ("True", "OnSchedule")


def test_missed_runs_are_counted_and_said() -> None:
    found = shown(seen(scheduled(status={"nextCheckpointTime": stamp(0)})), 3700)
    assert (found["missedRuns"], found["nextCheckpointTime"]) == (2, stamp(5400))
    assert found["message"] == f"{STARTED} (2 more were due, and are this one)"


WAITING: list[tuple[CheckpointBackupSnapshot, JSON, tuple[str, str]]] = [
    (
        seen(backup(), pod=None),
        {"nextCheckpointTime": stamp(10), "message": f"there is no pod trainer; waiting until {stamp(610)}"},
        ("False", "PodMissing"),
    ),
    (
        seen(backup({"suspend": True})),
        {"message": "spec.suspend is true: set it to false to go on"},
        ("False", "Suspended"),
    ),
    (
        seen(scheduled(status={"nextCheckpointTime": stamp(1800)})),
        {"nextCheckpointTime": stamp(1800)},
        ("False", "OnSchedule"),
    ),
    (
        seen(backup({"podRef": {"name": "trainer", "namespace": "theirs"}})),
        {
            "phase": "Failed",
            "message": "pod trainer is in namespace theirs, and this backup in ml: memory is not to be had across "
            "namespaces; create the backup in the pod's namespace",
        },
        ("True", "OtherNamespace"),
    ),
]


@pytest.mark.parametrize(("observed", "expected", "failed"), WAITING)
def test_before_the_first_run(observed: CheckpointBackupSnapshot, expected: JSON, failed: tuple[str, str]) -> None:
    assert shown(observed) == expected
    assert conditions(settled(observed))["Failed"] == failed


def test_a_refused_spec_that_is_corrected_is_as_new() -> None:
    refused = settled(seen(scheduled("0 0 30 2 *")))
    assert refused.phase == "Failed"
    assert conditions(refused)["Scheduled"] == ("False", "InvalidSchedule")
    corrected = seen(scheduled(status=msgspec.to_builtins(refused)))
    assert shown(corrected) == {"nextCheckpointTime": stamp(1800)}
    assert conditions(settled(corrected)) == {
        "Completed": ("False", "OnSchedule"),
        "Failed": ("False", "OnSchedule"),
        "Scheduled": ("True", "OnSchedule"),
    }


ENDED = {
    **BEGUN,
    "phase": "Completed",
    "message": "main: 4096 bytes",
    "builtImages": [IMAGE],
    "nextCheckpointTime": stamp(1800),
    "conditions": [
        {
            "type": kind,
            "status": "True" if kind == "Completed" else "False",
            "reason": "Completed",
            "message": "main: 4096 bytes",
            "lastTransitionTime": stamp(0),
            "observedGeneration": 3,
        }
        for kind in ("Completed", "Failed")
    ],
}


def test_between_runs_the_last_ones_word_stands() -> None:
    on_schedule = settled(seen(scheduled(status=ENDED)))
    assert (on_schedule.phase, on_schedule.message) == ("Completed", "main: 4096 bytes")
    again = seen(scheduled(status=msgspec.to_builtins(on_schedule)))
    assert settled(again, 20) == on_schedule


def test_a_suspended_schedule_says_so_and_goes_on_with_the_last_runs_word() -> None:
    suspended = settled(seen(scheduled(status=ENDED, suspend=True)))
    assert (suspended.phase, suspended.next_checkpoint_time) == ("Completed", None)
    assert suspended.message == "spec.suspend is true: set it to false to go on"
    assert conditions(suspended)["Scheduled"] == ("False", "Suspended")
    assert conditions(suspended)["Completed"] == ("True", "Completed")
    after = settled(seen(scheduled(status=msgspec.to_builtins(suspended))), 9000)
    assert (after.message, after.next_checkpoint_time) == ("main: 4096 bytes", stamp(10800))
    assert conditions(after)["Scheduled"] == ("True", "OnSchedule")


def test_a_run_that_could_not_begin_has_a_number_and_no_node() -> None:
    found = shown(seen(scheduled(status={**ENDED, "nextCheckpointTime": stamp(0)}), pod=None, due_age_s=600), 600)
    assert found == {
        "phase": "Failed",
        "run": 2,
        "startTime": stamp(600),
        "completionTime": stamp(600),
        "nextCheckpointTime": stamp(1800),
        "message": "there is no pod trainer, and the 600 s of spec.timeoutSeconds have passed",
    }


def test_a_schedule_whose_pod_has_ended_keeps_its_last_run() -> None:
    over = settled(seen(scheduled(status=ENDED), pod=pod("Succeeded")))
    assert (over.phase, over.next_checkpoint_time, over.built_images != ()) == ("Completed", None, True)
    assert over.message == "the schedule has ended: pod trainer has ended (Succeeded)"
    assert conditions(over)["Scheduled"] == ("False", "PodEnded")
    again = seen(scheduled(status=msgspec.to_builtins(over)), pod=pod(uid="new"))
    assert again.finished
    assert settled(again, 3600) == over


def test_a_schedule_whose_pod_ended_before_any_run_has_failed() -> None:
    over = settled(seen(scheduled(), pod=pod("Succeeded")))
    assert (over.phase, over.run) == ("Failed", 0)
    assert conditions(over)["Failed"] == ("True", "PodEnded")


def test_what_a_run_waits_for_is_said_without_a_change_of_phase() -> None:
    late = seen(backup(status={**BEGUN, "phase": "Checkpointing"}), node=node(ready=False), run_age_s=30)
    found = settled(late, 30)
    assert (found.phase, found.message) == ("Checkpointing", f"run 1 waits for node {NODE}, which is not ready")
    assert conditions(found)["Failed"] == ("False", "NodeNotReady")
    assert settled(with_backup(late, backup(status=msgspec.to_builtins(found))), 31) == found


def test_a_run_that_the_operator_ends_keeps_what_is_pushed() -> None:
    half = {**BEGUN, "phase": "ImagePushing", "builtImages": [IMAGE]}
    found = settled(seen(backup(status=half), run_age_s=610), 610)
    assert (found.phase, found.completion_time, len(found.built_images)) == ("CompletedWithError", stamp(610), 1)


def test_after_stop_pod_no_run_follows() -> None:
    pushed = {**BEGUN, "phase": "ImagePushed", "nextCheckpointTime": stamp(1800), "builtImages": [IMAGE]}
    found = settled(seen(scheduled(status=pushed, stopPod=True)))
    assert (found.phase, found.next_checkpoint_time) == ("CompletedPodDeleted", None)
    assert found.message == "run 1 is pushed, and pod trainer is deleted"
    assert conditions(found) == {
        "Completed": ("True", "PodDeleted"),
        "Failed": ("False", "PodDeleted"),
        "Scheduled": ("False", "PodDeleted"),
    }


def test_skipped_runs_are_counted_while_one_is_under_way() -> None:
    running = {**BEGUN, "phase": "ImagePushing", "nextCheckpointTime": stamp(0), "missedRuns": 1, "message": "as told"}
    found = shown(seen(scheduled(status=running)), 1900)
    assert found == {**running, "nextCheckpointTime": stamp(3600), "missedRuns": 3}


APPLICATION = {**BEGUN, "mode": "application"}
PUSHED = {
    "uid": UID,
    "run": 1,
    "state": "pushed",
    "image": "registry.example.com/checkpoints/trainer:save-main-000001",
    "digest": f"sha256:{'0' * 64}",
    "bytes": 4096,
    "savedAt": "2026-01-01T00:00:05.5+00:00",
}


def test_what_the_sidecar_reports_becomes_the_status() -> None:
    observed = seen(backup(status=APPLICATION), progress=msgspec.convert(PUSHED, BackupProgress))
    found = shown(observed)
    assert found == {
        **APPLICATION,
        "phase": "Completed",
        "lastCheckpointTime": stamp(5),
        "completionTime": stamp(10),
        "bytes": 4096,
        "builtImages": ({"containerName": "main", "imageName": PUSHED["image"], "digest": PUSHED["digest"]},),
        "message": f"pushed {PUSHED['image']}",
    }


def test_a_time_that_the_sidecar_can_not_write_is_replaced_by_the_operators() -> None:
    odd = msgspec.convert({**PUSHED, "savedAt": "yesterday"}, BackupProgress)
    assert settled(seen(backup(status=APPLICATION), progress=odd)).last_checkpoint_time == stamp(10)


def test_a_message_fits_the_schema() -> None:
    long = msgspec.convert(
        {"uid": UID, "run": 1, "state": "failed", "reason": "X", "message": "m" * 1024}, BackupProgress
    )
    assert len(settled(seen(backup(status=APPLICATION), progress=long)).message or "") <= MAX_MESSAGE
    rejected = seen(backup(status=APPLICATION), rejected_reason="m" * (MAX_MESSAGE + 1))
    assert len(settled(rejected).message or "") == MAX_MESSAGE


SETTLED = [
    seen(backup(status=BEGUN), run_age_s=29),
    seen(scheduled(status={**BEGUN, "nextCheckpointTime": stamp(1800)})),
    seen(backup(), pod=None),
    seen(backup({"suspend": True})),
    seen(scheduled("0 0 30 2 *")),
    seen(scheduled(status=ENDED)),
    seen(scheduled(status=ENDED), pod=pod("Failed")),
    seen(backup(status=BEGUN), has_ready_agent=False, run_age_s=40),
    seen(backup(status=APPLICATION), run_age_s=40),
]


@pytest.mark.parametrize("observed", SETTLED)
def test_a_second_look_finds_nothing_to_write(observed: CheckpointBackupSnapshot) -> None:
    first = settled(observed)
    body = {**msgspec.to_builtins(observed.backup), "status": msgspec.to_builtins(first)}
    second = with_backup(observed, msgspec.convert(body, CheckpointBackup))
    assert settled(second, 20) == first
