"""Backups that sidecars are to take: who gets which, and whose progress counts."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from holdfast.api.backup_runs import BackupProgress, BackupState, WantedBackup
from holdfast.api.meta import Key
from holdfast.runtime.backup_requests import BackupOfAnotherPod, BackupRequests
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from tests.runtime.scripted import ScriptedCluster

T0 = datetime(2026, 11, 18, 12, tzinfo=UTC)
DEADLINE = T0 + timedelta(seconds=600)


def wanted(uid: str = "b1", run: int = 1) -> WantedBackup:
    return WantedBackup(
        namespace="team-a",
        backup=f"backup-{uid}",
        uid=uid,
        run=run,
        container="trainer",
        registry_url="registry.example.com",
        repository="checkpoints",
        tag=f"backup-{uid}-trainer-{run:06d}-20261118T120000Z",
        owner_uid=uid,
        owner_kind="CheckpointBackup",
    )


def progress(state: BackupState, uid: str = "b1", run: int = 1) -> BackupProgress:
    return BackupProgress(uid=uid, run=run, state=state)


@pytest.fixture
def requests() -> BackupRequests:
    return BackupRequests()


def test_only_the_pod_that_is_meant_gets_the_backup_with_the_seconds_that_are_left(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    found = requests.wanted("pod-1", T0 + timedelta(seconds=60))
    assert found is not None
    assert (found.is_of, found.seconds_left) == (("b1", 1), 540.0)
    assert requests.wanted("pod-2", T0) is None
    assert requests.wanted("pod-1", DEADLINE) is None


def test_two_backups_of_one_pod_are_taken_one_after_the_other(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted("b1"), deadline=DEADLINE)
    requests.put("pod-1", wanted("b2"), deadline=DEADLINE)
    requests.record("pod-1", progress("pushing", "b1"))
    first = requests.wanted("pod-1", T0)
    requests.record("pod-1", progress("pushed", "b1"))
    second = requests.wanted("pod-1", T0)
    assert first is not None
    assert second is not None
    assert (first.uid, second.uid) == ("b1", "b2")


def test_a_run_that_is_over_stays_in_the_answer_so_that_its_end_is_repeated(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    requests.record("pod-1", progress("failed"))
    assert requests.wanted("pod-1", T0) is not None


def test_progress_is_read_by_run_and_wakes_the_backup_once(requests: BackupRequests) -> None:
    keys: list[Key] = []
    requests.attach(Informers(ScriptedCluster(), (), metrics=Metrics(), random=Random(1)), keys.append)
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    assert requests.progress("b1", 1) is None
    for _ in range(3):
        requests.record("pod-1", progress("saving"))
    assert requests.progress("b1", 1) == progress("saving")
    assert requests.progress("b1", 2) is None
    assert keys == [Key("team-a", "backup-b1")]


def test_putting_a_run_again_keeps_its_progress(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    requests.record("pod-1", progress("pushing"))
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    assert requests.progress("b1", 1) == progress("pushing")


def test_the_next_run_of_a_backup_ends_the_one_before(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted(run=1), deadline=DEADLINE)
    requests.put("pod-2", wanted(run=2), deadline=DEADLINE)
    assert requests.wanted("pod-1", T0) is None
    assert requests.is_withdrawn(progress("pushing", run=1))
    assert not requests.is_withdrawn(progress("accepted", run=2))


def test_a_withdrawn_backup_is_wanted_of_nobody_and_its_sidecar_gets_the_withdrawal(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    requests.record("pod-1", progress("pushing"))
    requests.withdraw("b1")
    requests.withdraw("b1")
    assert requests.wanted("pod-1", T0) is None
    assert requests.progress("b1", 1) is None
    assert requests.is_withdrawn(progress("pushing"))


def test_a_run_that_a_new_operator_does_not_know_yet_is_not_withdrawn(requests: BackupRequests) -> None:
    requests.record("pod-1", progress("pushing"))
    assert not requests.is_withdrawn(progress("pushing"))
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    requests.record("pod-1", progress("pushed"))
    assert requests.progress("b1", 1) == progress("pushed")


def test_a_report_about_another_pods_backup_is_refused(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    with pytest.raises(BackupOfAnotherPod):
        requests.record("pod-2", progress("pushed"))
    assert requests.progress("b1", 1) is None


def test_what_comes_after_the_image_was_pushed_changes_nothing(requests: BackupRequests) -> None:
    requests.put("pod-1", wanted(), deadline=DEADLINE)
    requests.record("pod-1", progress("pushed"))
    requests.record("pod-1", progress("saving"))
    assert requests.progress("b1", 1) == progress("pushed")
