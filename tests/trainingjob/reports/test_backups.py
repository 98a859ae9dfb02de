"""Backups that sidecars are to take, over TLS: who hears of them, and whose word about them counts."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from holdfast.api.backup_runs import BackupProgress
from holdfast.runtime.process import utc_now
from tests.runtime.report_server import ReportServerLab, running
from tests.runtime.test_backup_requests import progress, wanted
from tests.trainingjob.reports.reports import batch, ended


@pytest.fixture
async def office() -> AsyncIterator[ReportServerLab]:
    async with running() as office:
        yield office


def uid_of(office: ReportServerLab, index: int) -> str:
    label = "batch.kubernetes.io/job-completion-index"
    return next(pod.metadata.uid for pod in office.pods.list() if pod.metadata.labels[label] == str(index))


async def test_only_the_pod_that_is_meant_hears_of_the_backup(office: ReportServerLab) -> None:
    meant, other = await office.worker(0), await office.worker(1)
    office.backups.put(uid_of(office, 0), wanted(), deadline=utc_now() + timedelta(seconds=60))
    _, answer = await office.post(batch(), meant)
    _, nothing = await office.post(batch(index=1), other)
    assert answer["backup"]["uid"] == "b1"
    assert 0 < answer["backup"]["secondsLeft"] <= 60
    assert nothing["backup"] is None


async def test_what_a_sidecar_tells_of_its_backup_is_there_for_the_controller(office: ReportServerLab) -> None:
    token = await office.worker(0)
    office.backups.put(uid_of(office, 0), wanted(), deadline=utc_now() + timedelta(seconds=60))
    pushed = BackupProgress(uid="b1", run=1, state="pushed", digest=f"sha256:{'a' * 64}", bytes=7)
    for _ in range(2):  # a report whose answer was lost is sent again
        assert (await office.post(batch(backup=pushed), token))[0] == 200
    assert office.backups.progress("b1", 1) == pushed


async def test_a_report_about_another_pods_backup_is_refused_and_nothing_of_it_counts(office: ReportServerLab) -> None:
    await office.worker(0)
    other = await office.worker(1)
    office.backups.put(uid_of(office, 0), wanted(), deadline=utc_now() + timedelta(seconds=60))
    status, answer = await office.post(batch(ended(1), index=1, backup=progress("pushed")), other)
    assert status == 403
    assert "is not to take" in answer["error"]
    assert office.backups.progress("b1", 1) is None
    assert office.taken == []


async def test_a_sidecar_hears_that_its_backup_was_withdrawn_but_not_that_it_is_unknown(
    office: ReportServerLab,
) -> None:
    token = await office.worker(0)
    _, unknown = await office.post(batch(backup=progress("pushing")), token)
    office.backups.put(uid_of(office, 0), wanted(), deadline=utc_now() + timedelta(seconds=60))
    office.backups.withdraw("b1")
    _, withdrawn = await office.post(batch(backup=progress("pushing")), token)
    assert (unknown["backupWithdrawn"], withdrawn["backupWithdrawn"]) == (False, True)


@pytest.mark.parametrize(
    "fault",
    [
        {"message": "x" * 2000},
        {"reason": "two words"},
        {"digest": "sha256:short"},
        {"image": "a b"},
        {"bytes": -1},
        {"run": 0},
        {"checkpoint": "a\nb"},
    ],
)
async def test_progress_beyond_its_bounds_is_not_taken(office: ReportServerLab, fault: dict[str, object]) -> None:
    token = await office.worker(0)
    told = BackupProgress(**{"uid": "b1", "run": 1, "state": "failed", **fault})  # type: ignore[arg-type]
    status, answer = await office.post(batch(backup=told), token)
    assert (status, "can't be read" in answer["error"]) == (400, True)
