"""Tries until an attempt has what it begins with."""

from pathlib import Path

import pytest

from holdfast.api.reports import CheckpointReport
from holdfast.checkpoints.errors import AccessDenied, CheckpointError, StoreUnreachable
from holdfast.checkpoints.manifest import SaveInfo, checkpoint_name
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar import restore
from holdfast.sidecar.restore import RestoreLoop, ResumeInfo
from holdfast.sidecar.settings import Checkpoints, SidecarSettings
from tests.sidecar.volumes import MODEL, checkpoint

SAVED = '{"shards": 1, "ranks": [0], "attempt": 0, "restart": 0, "epoch": 5, "step": %s}'
ABOUT = SaveInfo("uid-1", "2026-01-01T00:00:00Z")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "RETRY_S", 0.0)


def begin(root: Path, faults: list[Exception], told: list[CheckpointReport]) -> RestoreLoop:
    place = Checkpoints(folder=root / "attempt-0", resume_link=root / "attempt-0.resume")

    def open_store() -> VolumeStore:
        if faults:
            raise faults.pop(0)
        return VolumeStore(root)

    return RestoreLoop(
        SidecarSettings(job="j", namespace="n", uid="u", attempt=0, index=0),
        place,
        open_store,
        environ={},
        about=lambda: ABOUT,
        on_checkpoint=told.append,
        wall=lambda: 7.0,
        lease=None,
    )


@pytest.mark.parametrize(
    ("marker", "done"),
    [(None, 5), ('{"shards": 1, "ranks": [0]}', 5), (SAVED % "null", 5), (SAVED % "17", 4), ("{", 5)],
    ids=["no marker", "a plain marker", "a whole epoch", "within an epoch", "half a marker"],
)
async def test_a_checkpoint_within_an_epoch_says_how_many_were_done(
    tmp_path: Path, marker: str | None, done: int
) -> None:
    files = {**MODEL, ".holdfast-complete": marker} if marker else MODEL
    VolumeStore(tmp_path).put(checkpoint_name(5, 0), checkpoint(tmp_path, 0, "checkpoint-epoch-5", files), ABOUT)
    began = await begin(tmp_path, [], []).run()
    assert (began.epoch, began.done, began.leaf) == (5, done, "checkpoint-epoch-5")


async def test_what_may_pass_is_tried_again_and_told_once(tmp_path: Path) -> None:
    told: list[CheckpointReport] = []
    faults: list[Exception] = [
        StoreUnreachable("no answer"),
        OSError(5, "Input/output error"),
        StoreUnreachable("no answer"),
    ]
    assert await begin(tmp_path, faults, told).run() == ResumeInfo()
    assert [(entry.outcome, entry.reason) for entry in told] == [("unrestored", "no answer")]
    assert (tmp_path / "attempt-0").is_dir()


async def test_an_error_that_nobody_foresaw_in_the_volume_is_tried_again(tmp_path: Path) -> None:
    told: list[CheckpointReport] = []
    assert await begin(tmp_path, [OSError(116, "Stale file handle")], told).run() == ResumeInfo()
    assert "Stale file handle" in told[0].reason


async def test_what_no_retry_mends_is_raised(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="wrong"):
        await begin(tmp_path, [AccessDenied("wrong")], []).run()
