"""What an attempt begins with, for each of its workers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.checkpoints.errors import (
    AccessDenied,
    BucketNotFound,
    CheckpointError,
    CheckpointNotFound,
    Incomplete,
    InvalidStoreUrl,
    ReadOnly,
    StorageFull,
    StoreError,
    StoreUnreachable,
)
from holdfast.checkpoints.manifest import SaveInfo, checkpoint_name
from holdfast.checkpoints.resume import DecisionPending
from holdfast.checkpoints.retention import stored_checkpoints
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar.restore import Restored, is_retryable, restore, withdraw_decision
from holdfast.sidecar.settings import Checkpoints
from holdfast.train.checkpoint import resume_position
from tests.sidecar.volumes import MODEL, checkpoint, tree

ABOUT = SaveInfo("uid-1", "2026-01-01T00:00:00Z")


def place(root: Path, attempt: int, first: str = "") -> Checkpoints:
    folder = root / f"attempt-{attempt}"
    return Checkpoints(folder=folder, resume_link=root / f"attempt-{attempt}.resume", resume_from=first)


def restored(
    root: Path,
    attempt: int,
    index: int = 0,
    first: str = "",
    note: Callable[[str], None] = lambda _: None,
    **more: bool,
) -> Restored:
    return restore(
        structs.replace(place(root, attempt, first), **more),
        VolumeStore(root),
        attempt=attempt,
        index=index,
        about=ABOUT,
        environ={},
        note=note,
    )


def saved(root: Path, attempt: int, epoch: int) -> Path:
    folder = checkpoint(root, attempt, f"checkpoint-epoch-{epoch}")
    VolumeStore(root).put(checkpoint_name(epoch, attempt), folder, ABOUT)
    return folder


def test_the_first_attempt_begins_with_nothing(tmp_path: Path) -> None:
    with pytest.raises(DecisionPending):
        restored(tmp_path, 0, index=1)
    assert restored(tmp_path, 0) == Restored(None, "")
    assert restored(tmp_path, 0, index=1) == Restored(None, "")
    assert (tmp_path / "attempt-0").is_dir()
    assert not (tmp_path / "attempt-0.resume").exists()


def test_the_next_one_begins_with_a_copy_of_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, 0, 3)
    saved(tmp_path, 0, 4)
    found = restored(tmp_path, 1)
    assert (found.name, found.address) == (checkpoint_name(4, 0), f"{tmp_path}/attempt-0/checkpoint-epoch-4")
    assert (tmp_path / "attempt-1.resume").resolve() == tmp_path / "attempt-1" / "checkpoint-epoch-4"
    assert tree(tmp_path / "attempt-1.resume").items() >= MODEL.items()


def test_what_an_old_worker_still_writes_does_not_change_what_was_begun_with(tmp_path: Path) -> None:
    original = saved(tmp_path, 0, 4)
    restored(tmp_path, 1)
    (original / "model.bin").write_text("later")
    assert tree(tmp_path / "attempt-1.resume").items() >= MODEL.items()


def test_the_link_still_leads_there_when_the_volume_is_mounted_elsewhere(tmp_path: Path) -> None:
    saved(tmp_path / "here", 0, 4)
    restored(tmp_path / "here", 1)
    (tmp_path / "here").rename(tmp_path / "there")
    assert tree(tmp_path / "there" / "attempt-1.resume").items() >= MODEL.items()


def test_a_second_start_of_the_attempt_changes_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 0, 4)
    restored(tmp_path, 1)
    before = tree(tmp_path)
    assert restored(tmp_path, 1).name == checkpoint_name(4, 1), "its own copy, which is newer"
    assert {**tree(tmp_path), "attempt-1.decision": ""} == {**before, "attempt-1.decision": ""}


def test_what_the_attempt_has_saved_itself_is_taken_where_it_is(tmp_path: Path) -> None:
    saved(tmp_path, 0, 4)
    own = saved(tmp_path, 1, 5)
    assert restored(tmp_path, 1).name == checkpoint_name(5, 1)
    assert (tmp_path / "attempt-1.resume").resolve() == own
    assert not (tmp_path / "attempt-1" / "checkpoint-epoch-4").exists()


def test_something_else_in_the_place_of_the_link_is_not_destroyed(tmp_path: Path) -> None:
    saved(tmp_path, 0, 4)
    (tmp_path / "attempt-1.resume").mkdir()
    (tmp_path / "attempt-1.resume" / "mine").write_text("precious")
    with pytest.raises(StoreError, match=r"can't set RESUME_FROM .*attempt-1\.resume"):
        restored(tmp_path, 1)
    assert (tmp_path / "attempt-1.resume" / "mine").read_text() == "precious"


def test_one_with_a_link_out_of_it_is_left_out_and_named(tmp_path: Path) -> None:
    saved(tmp_path, 0, 3)
    odd = checkpoint(tmp_path, 0, "checkpoint-epoch-4", {**MODEL, ".holdfast-complete": "{}"})
    (odd / "link").symlink_to(tmp_path / "secret")
    said: list[str] = []
    found = restored(tmp_path, 1, note=said.append)
    assert found.name == checkpoint_name(3, 0)
    assert [sentence.partition(":")[0] for sentence in said] == ["checkpoint-epoch-4 of attempt 0 is left out"]


def test_other_workers_wait_for_worker_0_and_begin_with_the_same(tmp_path: Path) -> None:
    saved(tmp_path, 0, 4)
    with pytest.raises(DecisionPending):
        restored(tmp_path, 1, index=1)
    first = restored(tmp_path, 1)
    saved(tmp_path, 0, 5)  # by a worker of the old attempt that was cut off
    assert restored(tmp_path, 1, index=1) == first


def test_an_attempt_that_goes_on_in_new_pods_waits_for_a_new_decision(tmp_path: Path) -> None:
    """As after a suspension: workers whose sidecars start before worker 0's must not begin further back."""
    store = VolumeStore(tmp_path)
    restored(tmp_path, 0)
    saved(tmp_path, 0, 3)
    withdraw_decision(store, 0)
    with pytest.raises(DecisionPending):
        restored(tmp_path, 0, index=1)
    assert restored(tmp_path, 0).name == restored(tmp_path, 0, index=1).name == checkpoint_name(3, 0)


@pytest.mark.parametrize("has_ended", [True, False])
def test_shards_of_a_save_that_nobody_ends_any_more_do_not_wait_for_those_of_another(
    tmp_path: Path, has_ended: bool
) -> None:
    shard = {"shard-0": "old", ".holdfast-complete-0": '{"shards": 2, "ranks": [0]}'}
    whole = {**shard, "shard-1": "old", ".holdfast-complete-1": '{"shards": 2, "ranks": [1]}'}
    restored(tmp_path, 0)
    checkpoint(tmp_path, 0, "checkpoint-epoch-3", whole)
    unfinished = (
        checkpoint(tmp_path, 0, "checkpoint-epoch-4", shard),
        checkpoint(tmp_path, 0, ".holdfast-joining", shard),
    )
    if has_ended:
        withdraw_decision(VolumeStore(tmp_path), 0)
    assert restored(tmp_path, 0).name == checkpoint_name(3, 0)
    assert [folder.exists() for folder in unfinished] == [not has_ended] * 2


def test_a_decision_that_is_withdrawn_still_ends_the_line_of_earlier_attempts(tmp_path: Path) -> None:
    store = VolumeStore(tmp_path)
    saved(tmp_path, 0, 3)
    restored(tmp_path, 1)
    withdraw_decision(store, 1)
    saved(tmp_path, 0, 9)  # by a worker that was cut off
    assert restored(tmp_path, 2).name == checkpoint_name(3, 1)


@pytest.mark.parametrize("note", [None, b"", b"[]", b"\xff", b'{"withdrawn": true}'])
def test_withdrawing_what_is_no_decision_breaks_nothing(tmp_path: Path, note: bytes | None) -> None:
    store = VolumeStore(tmp_path)
    if note is not None:
        store.write_decision(0, note)
    withdraw_decision(store, 0)
    assert restored(tmp_path, 0) == Restored(None, "")


def test_a_damaged_one_is_set_aside_and_named(tmp_path: Path) -> None:
    saved(tmp_path, 0, 3)
    (saved(tmp_path, 0, 4) / "model.bin").write_text("WEIGHTS")
    found = restored(tmp_path, 1)
    assert found.name == checkpoint_name(3, 0)
    (aside,) = found.quarantined
    assert aside.name == checkpoint_name(4, 0)
    assert "digest differs" in aside.reason


def test_a_job_may_begin_with_somebody_else_s_checkpoint_until_it_has_its_own(tmp_path: Path) -> None:
    theirs = checkpoint(tmp_path / "theirs", 0, "checkpoint-epoch-9")
    mine = tmp_path / "mine"
    found = restored(mine, 0, first=str(theirs))
    assert (found.name, found.address) == (checkpoint_name(9, 0), str(theirs))
    assert tree(mine / "attempt-0.resume").items() >= MODEL.items()
    assert restored(mine, 0, index=1, first=str(theirs)).name == checkpoint_name(9, 0)
    saved(mine, 0, 10)
    assert restored(mine, 1, first=str(theirs)).name == checkpoint_name(10, 0)


def test_an_attempt_that_goes_back_saves_anew_what_earlier_ones_had_and_so_does_the_next(tmp_path: Path) -> None:
    theirs = checkpoint(tmp_path / "theirs", 0, "checkpoint-epoch-3")
    mine = tmp_path / "mine"
    saved(mine, 0, 4)
    saved(mine, 0, 5)
    assert restored(mine, 1, first=str(theirs), resume_exactly=True).name == checkpoint_name(3, 1)
    assert (mine / "attempt-1.resume").resolve() == mine / "attempt-1" / "checkpoint-epoch-3"
    saved(mine, 1, 4)
    counting = [each.name for each in stored_checkpoints(VolumeStore(mine), 1) if each.is_resumable]
    assert counting == [checkpoint_name(4, 1), checkpoint_name(3, 1)]
    assert restored(mine, 2, first=str(theirs), resume_exactly=True).name == checkpoint_name(3, 2)


def test_where_there_is_nothing_to_go_back_to_the_attempt_begins_anew_and_nothing_is_lost(tmp_path: Path) -> None:
    own = saved(tmp_path, 0, 4)
    (tmp_path / "attempt-1.resume").symlink_to("gone")
    assert restored(tmp_path, 1, resume_exactly=True).name is None
    assert not (tmp_path / "attempt-1.resume").is_symlink()
    assert tree(own).items() >= MODEL.items()


def test_what_is_named_and_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"there is no folder /nowhere: correct checkpoint\.resumeFrom"):
        restored(tmp_path, 0, first="/nowhere")


def test_a_link_of_an_earlier_start_is_corrected(tmp_path: Path) -> None:
    (tmp_path / "attempt-0.resume").symlink_to("gone")
    restored(tmp_path, 0)
    assert not (tmp_path / "attempt-0.resume").is_symlink()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StoreUnreachable("x"), True),
        (StoreError("x"), True),
        (DecisionPending("x"), True),
        (Incomplete("x"), True),
        (AccessDenied("x"), False),
        (BucketNotFound("x"), False),
        (ReadOnly("x"), False),
        (StorageFull("x"), False),
        (InvalidStoreUrl("x"), False),
        (CheckpointNotFound("x"), False),
    ],
)
def test_only_what_changes_by_itself_is_tried_again(error: CheckpointError, passes: bool) -> None:
    assert is_retryable(error) == passes


def test_the_step_of_a_save_within_an_epoch_is_begun_with(tmp_path: Path) -> None:
    within = {**MODEL, ".holdfast-complete": '{"step": 7}'}
    checkpoint(tmp_path, 0, "checkpoint-epoch-3", within)
    assert restored(tmp_path, 1).name == checkpoint_name(3, 0)
    assert resume_position(tmp_path / "attempt-1" / "checkpoint-epoch-3") == (2, 7)
    assert restored(tmp_path, 2).name == checkpoint_name(3, 1)
    assert resume_position(tmp_path / "attempt-2" / "checkpoint-epoch-3") == (2, 7)


def test_what_was_being_replaced_when_its_process_was_killed_is_begun_with(tmp_path: Path) -> None:
    saved(tmp_path, 0, 3).rename(tmp_path / "attempt-0" / ".holdfast-replaced-checkpoint-epoch-3")
    assert restored(tmp_path, 1).name == checkpoint_name(3, 0)
