"""How a run under way goes on, and who ends it."""

from typing import Any

import msgspec
import pytest

from holdfast.api.backup_runs import BackupProgress
from holdfast.checkpointbackup.actions import AdvanceRun, DeletePod, EndRun, FollowRun
from holdfast.checkpointbackup.decision import decide
from holdfast.checkpointbackup.due import DueRuns
from holdfast.checkpointbackup.snapshot import TIMING, CheckpointBackupSnapshot
from tests.checkpointbackup.backups import BEGUN, IMAGE, backup, course, node, pod, scheduled, seen
from tests.trainingjobs import UID, at, stamp

JSON = dict[str, Any]
APPLICATION = {**BEGUN, "mode": "application"}
PHASES = ["Checkpointing", "Checkpointed", "ImageBuilding", "ImageBuilt", "ImagePushing", "ImagePushed"]


def phase(name: str, **more: Any) -> JSON:
    return {**BEGUN, "phase": name, **more}


def end(observed: CheckpointBackupSnapshot) -> tuple[str, str, str]:
    action = course(observed)
    assert isinstance(action, EndRun), action
    return action.phase, action.why.reason, action.why.message


def said(observed: CheckpointBackupSnapshot) -> str | None:
    """The word for what the run waits for."""
    action = course(observed)
    assert isinstance(action, FollowRun), action
    return action.why.reason if action.why is not None else None


class TestContainerMode:
    def test_the_agent_is_left_alone(self) -> None:
        for status in (BEGUN, *map(phase, PHASES)):
            assert course(seen(backup(status=status), run_age_s=29)) == FollowRun(DueRuns())

    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            ({"pod": None}, "PodGone"),
            ({"pod": pod(uid="another")}, "PodGone"),
            ({"pod": pod("Succeeded")}, "PodEnded"),
        ],
    )
    def test_a_pod_that_is_lost_before_the_agent_begins_ends_the_run(self, facts: JSON, reason: str) -> None:
        assert end(seen(backup(status=BEGUN), **facts))[:2] == ("Failed", reason)

    @pytest.mark.parametrize("name", PHASES)
    def test_once_the_agent_is_at_it_it_has_the_last_word_about_the_pod(self, name: str) -> None:
        assert course(seen(backup(status=phase(name)), pod=None)) == FollowRun(DueRuns())

    @pytest.mark.parametrize("status", [BEGUN, phase("ImagePushing")])
    def test_with_the_node_all_that_was_saved_is_gone(self, status: JSON) -> None:
        assert end(seen(backup(status=status), node=None))[:2] == ("Failed", "NodeGone")

    @pytest.mark.parametrize(
        ("status", "facts", "reason"),
        [
            (BEGUN, {"has_ready_agent": False}, "NoAgent"),
            (phase("Checkpointing"), {"has_ready_agent": False}, "NoAgent"),
            (BEGUN, {"node": node(ready=False)}, "NodeNotReady"),
            # It may be busy with other runs.
            (BEGUN, {}, None),
            (phase("Checkpointing"), {}, None),
            (BEGUN, {"has_ready_agent": False, "has_external_agent": True}, "AgentLate"),
            (phase("Checkpointing"), {"has_ready_agent": False, "has_external_agent": True}, None),
        ],
    )
    def test_after_thirty_seconds_it_says_what_is_missing(self, status: JSON, facts: JSON, reason: str | None) -> None:
        assert said(seen(backup(status=status), run_age_s=29, **facts)) is None
        assert said(seen(backup(status=status), run_age_s=30, **facts)) == reason

    @pytest.mark.parametrize(
        ("facts", "reason"), [({"has_ready_agent": False}, "NoAgent"), ({"node": node(ready=False)}, "NodeNotReady")]
    )
    def test_without_anybody_to_end_it_the_run_fails_at_the_deadline(self, facts: JSON, reason: str) -> None:
        assert said(seen(backup(status=BEGUN), run_age_s=599, **facts)) == reason
        found = end(seen(backup(status=BEGUN), run_age_s=600, **facts))
        assert found[:2] == ("Failed", reason)
        assert "the 600 s of spec.timeoutSeconds have passed" in found[2]

    @pytest.mark.parametrize(
        ("status", "external", "reason"),
        [
            (BEGUN, False, "AgentLate"),
            (phase("ImagePushing"), False, "DeadlineExceeded"),
            (BEGUN, True, "AgentLate"),
            (phase("ImagePushing"), True, "DeadlineExceeded"),
        ],
    )
    def test_an_agent_has_ten_seconds_more_to_end_its_run_itself(
        self, status: JSON, external: bool, reason: str
    ) -> None:
        late = {"has_external_agent": external, "has_ready_agent": not external}
        assert isinstance(course(seen(backup(status=status), run_age_s=609, **late)), FollowRun)
        assert end(seen(backup(status=status), run_age_s=610, **late))[:2] == ("Failed", reason)

    def test_a_run_that_has_pushed_something_ends_with_an_error(self) -> None:
        half = phase("ImagePushing", builtImages=[IMAGE])
        assert end(seen(backup(status=half), run_age_s=610))[0] == "CompletedWithError"

    def test_stop_pod_deletes_the_pod_once_all_is_pushed(self) -> None:
        stopping = {"stopPod": True}
        assert course(seen(backup(stopping, phase("ImagePushing")))) == FollowRun(DueRuns())
        assert course(seen(backup(stopping, phase("ImagePushed")))) == DeletePod()
        assert course(seen(backup(stopping, phase("ImagePushed")), pod=None, node=None)) == DeletePod()
        assert course(seen(backup(status=phase("ImagePushed")))) == FollowRun(DueRuns())

    def test_an_external_agent_deletes_the_pod_itself(self) -> None:
        pushed = seen(backup({"stopPod": True}, phase("ImagePushed")), has_external_agent=True)
        assert course(pushed) == FollowRun(DueRuns())

    def test_runs_that_are_due_meanwhile_are_skipped_and_counted(self) -> None:
        running = scheduled(status={**BEGUN, "nextCheckpointTime": stamp(0)})
        assert course(seen(running), 1801) == FollowRun(DueRuns(next=at(3600), missed=2))

    def test_a_schedule_that_is_broken_meanwhile_does_not_hurt_the_run(self) -> None:
        assert course(seen(scheduled("0 0 30 2 *", BEGUN))) == FollowRun(DueRuns())


def reports(state: str, **more: Any) -> BackupProgress:
    return msgspec.convert({"uid": UID, "run": 1, "state": state, **more}, BackupProgress)


def followed(
    progress: BackupProgress | None, status: JSON = APPLICATION, spec: JSON | None = None, **facts: Any
) -> Any:
    actions = decide(seen(backup(spec, status), progress=progress, **facts), at(10), TIMING)
    return [action.phase if isinstance(action, AdvanceRun) else action for action in actions]


class TestApplicationMode:
    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            ("accepted", PHASES[:1]),
            ("saving", PHASES[:1]),
            ("saved", PHASES[:2]),
            ("packing", PHASES[:3]),
            ("packed", PHASES[:4]),
            ("pushing", PHASES[:5]),
        ],
    )
    def test_each_phase_up_to_what_the_sidecar_reports_is_written(self, state: str, expected: list[str]) -> None:
        assert followed(reports(state)) == expected

    def test_what_is_written_already_is_not_written_again(self) -> None:
        at_phase = {**APPLICATION, "phase": "ImageBuilt"}
        assert followed(reports("packed"), at_phase) == [FollowRun(DueRuns())]
        assert followed(reports("saving"), at_phase) == [FollowRun(DueRuns())]
        assert followed(reports("pushing"), at_phase) == ["ImagePushing"]

    def test_a_pushed_image_completes_the_run(self) -> None:
        *phases, last = followed(reports("pushed", image="r/x:1"))
        assert (phases, last.phase, last.why.message) == (PHASES, "Completed", "pushed r/x:1")

    def test_with_stop_pod_the_pod_is_deleted_then(self) -> None:
        assert followed(reports("pushed"), spec={"stopPod": True}) == [*PHASES, DeletePod()]

    def test_what_status_says_is_pushed_is_pushed_though_the_operator_has_forgotten_the_report(self) -> None:
        pushed = {**APPLICATION, "phase": "ImagePushed", "message": "it is there"}
        (done,) = followed(None, pushed, pod=None)
        assert (done.phase, done.why.message) == ("Completed", "it is there")
        assert followed(None, pushed, spec={"stopPod": True}, pod=None) == [DeletePod()]

    def test_a_failed_save_fails_the_run_in_the_sidecars_words(self) -> None:
        (action,) = followed(reports("failed", reason="DiskFull", message="no space"))
        assert (action.phase, action.why.reason, action.why.message) == ("Failed", "DiskFull", "no space")
        (action,) = followed(reports("failed"))
        assert (action.why.reason, action.why.message) == ("SaveFailed", "the save failed")

    @pytest.mark.parametrize("state", [None, "pushing"])
    def test_a_pod_that_is_lost_ends_the_run(self, state: str | None) -> None:
        (action,) = followed(reports(state) if state else None, pod=None)
        assert (action.phase, action.why.reason) == ("Failed", "PodGone")

    def test_an_image_that_is_there_counts_though_the_pod_is_gone(self) -> None:
        assert followed(reports("pushed"), pod=None)[-1].phase == "Completed"

    def test_a_sidecar_that_does_not_answer_is_said_and_fails_the_run(self) -> None:
        assert followed(None, run_age_s=29) == [FollowRun(DueRuns())]
        (late,) = followed(None, run_age_s=30)
        assert (late.why.reason, "kubectl logs trainer -c holdfast-sidecar" in late.why.message) == (
            "SidecarLate",
            True,
        )
        (silent,) = followed(None, run_age_s=610)
        assert (silent.phase, silent.why.reason) == ("Failed", "SidecarSilent")

    def test_a_sidecar_that_comes_to_no_end_fails_the_run(self) -> None:
        at_phase = {**APPLICATION, "phase": "ImagePushing"}
        (action,) = followed(reports("pushing"), at_phase, run_age_s=610)
        assert (action.phase, action.why.reason) == ("Failed", "DeadlineExceeded")

    def test_a_target_that_can_not_be_named_fails_the_run(self) -> None:
        (action,) = followed(None, rejected_reason="no such host")
        assert (action.phase, action.why.message) == ("Failed", "no such host")
