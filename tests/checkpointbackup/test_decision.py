"""Which action is taken, given what is seen, while no run is under way."""

from typing import Any

import pytest

from holdfast.checkpointbackup.actions import BeginRun, DeleteOldImages, EndSchedule, FailDueRun, HoldRun, Idle
from holdfast.checkpointbackup.decision import decide, may_begin, requeue_in_s
from holdfast.checkpointbackup.due import DueRuns
from holdfast.checkpointbackup.snapshot import TIMING, CheckpointBackupSnapshot
from holdfast.decisions import CleanUp
from tests.checkpointbackup.backups import (
    BEGUN,
    IMAGE,
    NODE,
    POD_UID,
    backup,
    course,
    details,
    node,
    pod,
    scheduled,
    seen,
)
from tests.trainingjobs import at, stamp

ENDED = {**BEGUN, "phase": "Completed", "builtImages": [IMAGE]}
DUE = {"nextCheckpointTime": stamp(0)}
EMPTY_DIR: dict[str, Any] = {
    "containers": [{"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    "volumes": [{"name": "data", "emptyDir": {}}],
}


def held(observed: CheckpointBackupSnapshot, seconds: float = 10) -> tuple[str, str]:
    action = course(observed, seconds)
    assert isinstance(action, HoldRun), action
    return action.why.reason, action.why.message


def failed(observed: CheckpointBackupSnapshot, seconds: float = 10) -> tuple[str, str]:
    action = course(observed, seconds)
    assert isinstance(action, FailDueRun), action
    return action.why.reason, action.why.message


def ended(observed: CheckpointBackupSnapshot, seconds: float = 10) -> tuple[str, str]:
    action = course(observed, seconds)
    assert isinstance(action, EndSchedule), action
    return action.why.reason, action.why.message


def begun(observed: CheckpointBackupSnapshot, seconds: float = 10) -> BeginRun:
    action = course(observed, seconds)
    assert isinstance(action, BeginRun), action
    return action


class TestBeginning:
    def test_a_run_begins_on_the_pods_node_for_this_very_pod(self) -> None:
        action = begun(seen(backup()))
        assert (action.node, action.pod_uid, action.mode.mode, action.next) == (NODE, POD_UID, "container", None)
        assert action.warnings == ()

    def test_a_scheduled_run_names_the_one_after_it(self) -> None:
        action = begun(seen(scheduled(status={**ENDED, **DUE})))
        assert (action.due, action.next) == (DueRuns(next=at(0), is_due=True), at(1800))

    def test_a_pod_of_the_same_name_and_another_uid_is_the_next_runs_pod(self) -> None:
        again = seen(scheduled(status={**ENDED, **DUE}), pod=pod(uid="new"), details=details(uid="new"))
        assert begun(again).pod_uid == "new"

    def test_several_that_were_missed_become_one_and_it_is_said(self) -> None:
        action = begun(seen(scheduled(status={**ENDED, **DUE})), 3700)
        (warning,) = action.warnings
        assert (action.due.missed, warning.reason) == (2, "RunsMissed")
        assert warning.message.startswith(f"3 runs were due since {stamp(0)}")

    def test_what_a_checkpoint_will_not_hold_is_warned_of(self) -> None:
        (warning,) = begun(seen(backup({"mode": "container"}), details=details(**EMPTY_DIR))).warnings
        assert (warning.reason, "/data of container main" in warning.message) == ("WouldLoseFiles", True)

    PROBED = details(containers=[{"name": "main", "livenessProbe": {"periodSeconds": 1, "failureThreshold": 1}}])

    @pytest.mark.parametrize(
        ("status", "reasons"),
        [
            ({}, ["ProbeTooShort"]),
            ({**ENDED, "frozenSeconds": 9.0}, ["ProbeTooShort"]),
            ({**ENDED, "frozenSeconds": 0.5}, []),
            # It was said twice already.
            ({**ENDED, "run": 2, "frozenSeconds": 9.0}, []),
            ({**ENDED, "run": 2, "frozenSeconds": 9.0, "podUID": "another"}, ["ProbeTooShort"]),
        ],
    )
    def test_a_probe_that_is_too_short_is_warned_of_before_the_first_runs(
        self, status: dict[str, Any], reasons: list[str]
    ) -> None:
        action = begun(seen(scheduled(status={**status, **DUE}), details=self.PROBED))
        assert [warning.reason for warning in action.warnings] == reasons

    def test_in_application_mode_neither_volumes_nor_probes_matter(self) -> None:
        sidecar = {"name": "holdfast-sidecar", "restartPolicy": "Always"}
        action = begun(seen(backup(), details=details(initContainers=[sidecar], **EMPTY_DIR)))
        assert (action.mode.mode, action.warnings) == ("application", ())


class TestNotYet:
    def test_nothing_happens_before_the_next_moment(self) -> None:
        assert course(seen(scheduled(status={**ENDED, "nextCheckpointTime": stamp(1800)}))) == Idle(
            DueRuns(next=at(1800))
        )

    OBSTACLES = [
        ({"pod": None}, "PodMissing", f"there is no pod trainer; waiting until {stamp(600)}"),
        ({"pod": pod("Pending", on="")}, "PodNotRunning", "pod trainer is not running yet (Pending); waiting until"),
        ({"pod": pod(metadata={"deletionTimestamp": stamp(5)})}, "PodTerminating", "pod trainer is going away"),
        ({"node": None}, "NodeMissing", f"node {NODE} of pod trainer is not known"),
        ({"other_backup": "other"}, "AnotherBackup", "waiting for the run of CheckpointBackup other"),
    ]

    @pytest.mark.parametrize(("facts", "reason", "message"), OBSTACLES)
    def test_a_run_that_is_due_waits_and_says_for_what(self, facts: dict[str, Any], reason: str, message: str) -> None:
        found = held(seen(backup(status=DUE), **facts, due_age_s=599))
        assert found[0] == reason
        assert found[1].startswith(message)

    @pytest.mark.parametrize(("facts", "reason"), [(facts, reason) for facts, reason, _ in OBSTACLES[:4]])
    def test_it_waits_until_the_deadline(self, facts: dict[str, Any], reason: str) -> None:
        found = failed(seen(backup(status=DUE), **facts, due_age_s=600), 600)
        assert found[0] == reason
        assert found[1].endswith(", and the 600 s of spec.timeoutSeconds have passed")

    def test_the_run_of_another_backup_has_a_deadline_of_its_own(self) -> None:
        assert held(seen(backup(status=DUE), other_backup="other", due_age_s=900))[0] == "AnotherBackup"

    def test_a_schedule_goes_on_after_a_run_that_could_not_begin(self) -> None:
        action = course(seen(scheduled(status=DUE), pod=None, due_age_s=600), 610)
        assert isinstance(action, FailDueRun)
        assert action.next == at(1800)

    @pytest.mark.parametrize("schedule", ["immediately", "*/30 * * * *"])
    def test_suspend_begins_nothing(self, schedule: str) -> None:
        assert held(seen(scheduled(schedule, DUE, suspend=True)))[0] == "Suspended"

    def test_a_pod_that_is_gone_when_its_details_are_read_is_waited_for(self) -> None:
        assert isinstance(course(seen(backup(), details=None)), Idle)


class TestEnds:
    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_an_ended_pod_fails_a_run_and_ends_a_schedule(self, phase: str) -> None:
        once = failed(seen(backup(), pod=pod(phase)))
        assert once == ("PodEnded", f"pod trainer has ended ({phase}): there is nothing left to save")
        for status in (DUE, {**ENDED, "nextCheckpointTime": stamp(1800)}):
            found = ended(seen(scheduled(status=status), pod=pod(phase)))
            assert found == ("PodEnded", f"the schedule has ended: pod trainer has ended ({phase})")

    def test_an_ended_pod_of_a_stateful_set_comes_again(self) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "trainer", "uid": "u", "controller": True}
        again = pod("Failed", metadata={"ownerReferences": [owner]})
        assert held(seen(scheduled(status={**ENDED, **DUE}), pod=again))[0] == "PodTerminating"

    def test_a_pod_that_ends_because_it_is_deleted_may_come_again(self) -> None:
        leaving = pod("Failed", metadata={"deletionTimestamp": stamp(5)})
        assert held(seen(scheduled(status={**ENDED, **DUE}), pod=leaving))[0] == "PodTerminating"
        idle = seen(scheduled(status={**ENDED, "nextCheckpointTime": stamp(1800)}), pod=leaving)
        assert isinstance(course(idle), Idle)

    @pytest.mark.parametrize("status", [{}, {**ENDED, "nextCheckpointTime": stamp(1800)}])
    def test_a_pod_of_another_namespace_is_refused(self, status: dict[str, Any]) -> None:
        other = scheduled(status=status, podRef={"name": "trainer", "namespace": "theirs"})
        reason, message = ended(seen(other))
        assert (reason, "memory is not to be had across namespaces" in message) == ("OtherNamespace", True)

    def test_its_own_namespace_may_be_written(self) -> None:
        begun(seen(backup({"podRef": {"name": "trainer", "namespace": "ml"}})))

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ({"schedule": "0 0 30 2 *"}, "InvalidSchedule"),
            ({"schedule": "0 0 * * *", "timeZone": "Middle/Earth"}, "UnknownTimeZone"),
            ({"timeZone": "Middle/Earth"}, "UnknownTimeZone"),
        ],
    )
    def test_a_schedule_that_fits_no_date_is_refused_at_once(self, spec: dict[str, Any], reason: str) -> None:
        assert ended(seen(backup(spec)))[0] == reason
        assert not may_begin(seen(backup(spec)), at(10))

    @pytest.mark.parametrize(
        ("mode", "pod_details", "reason"),
        [
            ("auto", details(**EMPTY_DIR), "WouldLoseFiles"),
            ("application", details(), "NoSidecar"),
        ],
    )
    def test_a_pod_that_can_not_be_saved_as_the_spec_wishes_fails_the_run(
        self, mode: str, pod_details: Any, reason: str
    ) -> None:
        assert failed(seen(backup({"mode": mode}), details=pod_details))[0] == reason

    def test_a_deleted_pod_ends_the_schedule_whoever_has_deleted_it(self) -> None:
        done = {**ENDED, "phase": "CompletedPodDeleted", "nextCheckpointTime": stamp(1800)}
        assert ended(seen(scheduled(status=done), pod=None))[0] == "PodDeleted"

    def test_what_has_finished_stays_so(self) -> None:
        over = {"type": "Scheduled", "status": "False", "reason": "PodEnded", "message": ""}
        over["lastTransitionTime"] = stamp(0)
        assert course(seen(backup(status=ENDED))) == CleanUp()
        assert course(seen(scheduled(status={**ENDED, "conditions": [over]}))) == CleanUp()


def test_old_images_are_deleted_first() -> None:
    actions = decide(seen(backup(status=ENDED), has_old_images=True), at(10), TIMING)
    assert actions == (DeleteOldImages(), CleanUp())


@pytest.mark.parametrize(
    ("observed", "begins"),
    [
        (seen(backup()), True),
        (seen(scheduled(status={**ENDED, **DUE})), True),
        (seen(backup(status=BEGUN)), False),
        (seen(backup(status=ENDED)), False),
        (seen(backup({"suspend": True})), False),
        (seen(scheduled(status={**ENDED, "nextCheckpointTime": stamp(1800)})), False),
        (seen(backup(), pod=None), False),
        (seen(backup(), pod=pod("Succeeded")), False),
        (seen(backup(), node=None), False),
    ],
)
def test_the_pods_details_are_read_only_when_a_run_may_begin(observed: CheckpointBackupSnapshot, begins: bool) -> None:
    assert may_begin(observed, at(10)) == begins


@pytest.mark.parametrize(
    ("observed", "seconds", "expected"),
    [
        (seen(backup(status=ENDED)), 10, []),
        (seen(backup(status=DUE), pod=None, due_age_s=10), 10, [590]),
        (seen(backup(status=DUE), pod=None, due_age_s=601), 601, []),
        (seen(scheduled(status={**ENDED, "nextCheckpointTime": stamp(1800)})), 10, [1790]),
        (seen(backup(status=BEGUN), run_age_s=10), 10, [20, 590, 600]),
        (seen(scheduled(status={**BEGUN, "nextCheckpointTime": stamp(1800)}), run_age_s=31), 31, [569, 579, 1769]),
        (seen(backup({"schedule": "0 0 30 2 *"})), 10, []),
        (seen(backup({"suspend": True})), 10, []),
    ],
)
def test_it_looks_again_when_something_may_be_different(
    observed: CheckpointBackupSnapshot, seconds: float, expected: list[float]
) -> None:
    assert list(requeue_in_s(observed, at(seconds), TIMING)) == expected


def test_a_node_that_is_not_ready_does_not_hold_up_the_beginning() -> None:
    """The agent or the deadline tells: a node may come back."""
    assert isinstance(course(seen(backup(), node=node(ready=False))), BeginRun)
