"""When a checkpoint is complete, and when nobody can tell."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from holdfast.checkpoints.completeness import (
    HEARTBEAT_FILE,
    MARKER,
    CheckpointWatcher,
    FolderScan,
    ShardMarkers,
    completed_before_exit,
    open_for_writing,
    read_markers,
)
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.making import ABOUT, MODEL, ODD, Oddity, await_tick, fill, save, save_by_rename

NAME = checkpoint_name(3, 0)


def watching(root: Path) -> CheckpointWatcher:
    return CheckpointWatcher(root / "attempt-0", is_open=lambda _: False)


def only(looked: list[FolderScan]) -> FolderScan:
    (one,) = looked
    return one


def mark(folder: Path, shards: int, *ranks: int) -> None:
    (folder / MARKER).write_text(json.dumps({"shards": shards, "ranks": ranks}))


def test_a_watch_begins_before_there_is_a_folder(tmp_path: Path) -> None:
    assert watching(tmp_path).scan(0) == []


def test_a_marker_makes_it_complete_at_once(tmp_path: Path) -> None:
    mark(save(tmp_path, NAME), 1, 0)
    assert only(watching(tmp_path).scan(0)).complete


def test_a_rename_makes_it_complete_at_once(tmp_path: Path) -> None:
    save_by_rename(tmp_path, NAME)
    seen = only(watching(tmp_path).scan(0))
    assert (seen.complete, seen.why) == (True, "renamed when it was whole")


def test_a_plain_save_is_complete_when_it_has_been_quiet(tmp_path: Path) -> None:
    save(tmp_path, NAME)
    watch = watching(tmp_path)
    assert [only(watch.scan(now)).complete for now in (100, 102, 104.9, 105)] == [False, False, False, True]


def test_every_change_makes_the_wait_begin_again(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    watch = watching(tmp_path)
    watch.scan(0)
    await_tick(folder)
    (folder / "model.bin").write_bytes(b"WEIGHTS")
    assert not only(watch.scan(5)).complete
    assert not only(watch.scan(9)).complete
    assert only(watch.scan(10)).complete


def test_one_of_very_many_files_is_looked_at_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoints.completeness.FILES_PER_S", 1)
    folder = save(tmp_path, NAME)
    watch = watching(tmp_path)
    first = only(watch.scan(0))
    await_tick(folder)
    (folder / "more").touch()
    assert only(watch.scan(2.9)) == first
    assert len(only(watch.scan(3)).content) == len(first.content) + 1
    shutil.rmtree(folder)
    assert watch.scan(3.1) == []


def test_what_has_not_changed_is_held_once(tmp_path: Path) -> None:
    save(tmp_path, NAME)
    watch = watching(tmp_path)
    assert only(watch.scan(0)).content is only(watch.scan(1)).content


def test_a_checkpoint_that_is_saved_anew_has_other_content(tmp_path: Path) -> None:
    folder = save_by_rename(tmp_path, NAME)
    watch = watching(tmp_path)
    first = only(watch.scan(0))
    shutil.rmtree(folder)
    save_by_rename(tmp_path, NAME)
    second = only(watch.scan(1))
    assert first.complete
    assert second.complete
    assert first.content != second.content


def test_digesting_does_not_change_what_is_seen(tmp_path: Path) -> None:
    folder = save_by_rename(tmp_path, NAME)
    watch = watching(tmp_path)
    before = only(watch.scan(0))
    VolumeStore(tmp_path).put(NAME, folder, ABOUT)
    assert only(watch.scan(10)).content == before.content


def test_an_empty_folder_is_never_complete(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME, {})
    mark(folder, 1, 0)
    watch = watching(tmp_path)
    assert not only(watch.scan(0)).complete
    (folder / MARKER).unlink()
    assert not only(watch.scan(100)).complete


def test_what_is_open_for_writing_is_not_complete(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    watch = CheckpointWatcher(tmp_path / "attempt-0")
    with (folder / "model.bin").open("ab"):
        watch.scan(0)
        seen = only(watch.scan(10))
        assert (seen.complete, seen.why) == (False, "a file in it is open for writing")
    with (folder / "model.bin").open("rb"):
        assert only(watch.scan(20)).complete


def test_what_was_open_has_to_be_quiet_once_it_is_closed(tmp_path: Path) -> None:
    """A training that dies in the middle of a long save closes its files, too."""
    folder = save(tmp_path, NAME)
    watch = CheckpointWatcher(tmp_path / "attempt-0")
    with (folder / "model.bin").open("ab"):
        for moment in range(20):
            assert not only(watch.scan(moment)).complete
    assert not only(watch.scan(20)).complete
    assert only(watch.scan(25)).complete


def test_what_was_open_to_the_end_is_not_complete_after_all(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    watch = CheckpointWatcher(tmp_path / "attempt-0", quiet_s=0)
    with (folder / "model.bin").open("ab"):
        await_tick(tmp_path)
        assert not only(watch.scan(0)).complete
    assert completed_before_exit(folder, quiet_s=0) is None
    await_tick(tmp_path)
    assert only(watch.scan(1)).complete
    assert completed_before_exit(folder, quiet_s=0) == "the training went on after it"


def test_an_open_file_is_seen_only_in_its_own_folder(tmp_path: Path) -> None:
    fill(tmp_path, {"a/file": b"", "ab/file": b""})
    with (tmp_path / "ab" / "file").open("w"):
        assert not open_for_writing(tmp_path / "a")
        assert open_for_writing(tmp_path / "ab")


def test_what_can_not_be_kept_is_not_complete_and_says_why(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    (folder / "link").symlink_to("/etc")
    seen = only(watching(tmp_path).scan(0))
    assert not seen.complete
    assert "leads out of" in seen.why


def test_it_counts_as_refused_when_it_stays_so(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    (folder / "latest").symlink_to("model-3.bin")
    watch = watching(tmp_path)
    assert not only(watch.scan(0)).refused, "the file may be still to come"
    assert not only(watch.scan(9)).refused, "and it is not looked at all the time: there may be very many files"
    seen = only(watch.scan(20))
    assert (seen.refused, seen.complete) == (True, False)
    assert "leads nowhere: remove it" in seen.why
    (folder / "model-3.bin").touch()
    assert not only(watch.scan(40)).refused
    (folder / "model-3.bin").unlink()
    assert not only(watch.scan(41)).refused, "anew"


def test_a_checkpoint_that_is_removed_during_a_look_is_not_complete(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)

    def remove(folder: Path) -> bool:
        shutil.rmtree(folder)
        folder.stat()
        return False

    watch = CheckpointWatcher(folder.parent, is_open=remove)
    watch.scan(0)
    assert not only(watch.scan(10)).complete
    assert watch.scan(20) == []


def test_declared_shards_are_all_waited_for_however_quiet_it_is(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    (folder / f"{MARKER}-0").write_text('{"shards": 3}')
    watch = watching(tmp_path)
    watch.scan(0)
    assert (only(watch.scan(1000)).complete, only(watch.scan(1000)).why) == (False, "1 of 3 shards declared")
    (folder / f"{MARKER}-2").write_text('{"shards": 3}')
    assert not only(watch.scan(2000)).complete
    (folder / f"{MARKER}-1").write_text('{"shards": 3}')
    assert only(watch.scan(2000)).complete


def test_a_worker_with_a_volume_of_its_own_sees_that_its_part_is_there(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME)
    assert only(watching(tmp_path).scan(0)).declared is None
    (folder / f"{MARKER}-2").write_text('{"shards": 3}')
    seen = only(watching(tmp_path).scan(0))
    assert (seen.complete, seen.declared) == (False, ShardMarkers(3, frozenset({2})))


SHARD = {"shards": 2, "attempt": 0, "restart": 1, "epoch": 3, "step": 7}


@pytest.mark.parametrize(
    ("markers", "expected"),
    [
        ({}, None),
        ({"": {"shards": 2, "ranks": [0, 1]}}, ShardMarkers(2, frozenset({0, 1}))),
        ({"": {"shards": 2, "ranks": [0, 0]}}, ShardMarkers(2, frozenset({0}))),
        ({"-1": {"shards": 2}, "-0": {"shards": 2}}, ShardMarkers(2, frozenset({0, 1}))),
        ({"": {"shards": 2, "ranks": [0]}, "-1": {"shards": 2}}, ShardMarkers(2, frozenset({0, 1}))),
        ({"": {}}, ShardMarkers(1, frozenset({0}))),
        (
            {"": {"step": 7, "metrics": {"loss": 1, "x": "y", "n": math.nan}}},
            ShardMarkers(1, frozenset({0}), 7, {"loss": 1}),
        ),
        ({"": {"step": -7}}, ShardMarkers(1, frozenset({0}))),
        ({"-0": SHARD, "-1": SHARD}, ShardMarkers(2, frozenset({0, 1}), 7, {}, "0.1.3.7")),
        ({"-0": SHARD, "-1": {**SHARD, "step": 8}}, ShardMarkers(2, frozenset(), 7, {}, "0.1.3.7")),
        ({"-0": SHARD, "-1": {**SHARD, "restart": 0}}, ShardMarkers(2, frozenset(), 7, {}, "0.1.3.7")),
        ({"-x": {"shards": 1}, "-01": {"shards": 1}, "d": {"shards": 1}}, None),
        ({"": {"shards": 0}}, None),
        ({"": {"shards": "2"}}, None),
        ({"": {"shards": 1, "ranks": ["0"]}}, None),
        ({"": {"shards": 1, "ranks": 7}}, None),
        ({"": []}, None),
    ],
)
def test_what_markers_say(tmp_path: Path, markers: dict[str, object], expected: ShardMarkers | None) -> None:
    for suffix, said in markers.items():
        (tmp_path / f"{MARKER}{suffix}").write_text(json.dumps(said))
    assert read_markers(tmp_path) == expected


@pytest.mark.parametrize("content", [b"", b"{", b'{"shards"', b"\xff", b"[" * 60_000])
def test_a_marker_that_is_half_written_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MARKER).write_bytes(content)
    (tmp_path / f"{MARKER}-1").write_bytes(content)
    assert read_markers(tmp_path) is None


@pytest.mark.parametrize("how", ["file renamed in", "file removed", "touched", "second file begun"])
def test_other_changes_of_a_folder_do_not_pass_for_a_rename(tmp_path: Path, how: str) -> None:
    folder = save(tmp_path, NAME, {"model.bin": b"weights", "model.tmp": b"", "half.bin": b""})
    await_tick(folder)
    if how == "file renamed in":
        (folder / "model.tmp").rename(folder / "optimizer.bin")
    elif how == "file removed":
        (folder / "model.tmp").unlink()
    elif how == "touched":
        os.utime(folder)
    else:
        (folder / "optimizer.bin").touch()
    assert not only(watching(tmp_path).scan(0)).complete


def test_a_folder_that_is_written_to_after_its_rename_is_not_complete(tmp_path: Path) -> None:
    folder = save_by_rename(tmp_path, NAME)
    await_tick(folder)
    (folder / "model.bin").write_bytes(b"half")
    assert not only(watching(tmp_path).scan(0)).complete


@pytest.mark.parametrize("again", range(5))
def test_a_rename_right_after_the_last_write_is_one(tmp_path: Path, again: int) -> None:
    """Both fall into one tick of the file system's clock more often than not."""
    target = tmp_path / NAME.folder
    partial = target.with_name("partial")
    fill(partial, MODEL)
    await_tick(partial)
    (partial / next(iter(MODEL))).write_bytes(b"weights")
    partial.rename(target)
    assert completed_before_exit(target) == "renamed when it was whole"


def test_a_change_of_owner_by_the_kubelet_does_not_pass_for_a_rename(tmp_path: Path) -> None:
    folder = save(tmp_path, NAME, {"model.bin": b"half"})
    (folder.parent / HEARTBEAT_FILE).touch()
    made_ns = folder.parent.stat().st_mtime_ns
    await_tick(folder)
    os.utime(folder.parent, ns=(made_ns, made_ns))  # waiting has left its trace there
    for path in (folder, folder / "model.bin"):
        path.chmod(0o770)
    assert not only(watching(tmp_path).scan(0)).complete


def test_after_the_attempt_a_marker_or_a_rename_is_enough(tmp_path: Path) -> None:
    marked = save(tmp_path, checkpoint_name(1, 0))
    mark(marked, 1, 0)
    assert completed_before_exit(marked)
    assert completed_before_exit(save_by_rename(tmp_path, checkpoint_name(2, 0)))
    mark(marked, 2, 0)
    assert not completed_before_exit(marked)


def test_a_plain_save_needs_a_later_sign_of_life(tmp_path: Path) -> None:
    """By the file system's own clock; a quiet time of nothing stands for seconds."""
    folder = save(tmp_path, NAME)
    assert completed_before_exit(folder, quiet_s=0) is None, "the training may have died in the middle of it"
    await_tick(folder)
    (tmp_path / "attempt-0" / HEARTBEAT_FILE).touch()
    assert completed_before_exit(folder, quiet_s=0) == "the training went on after it"
    assert completed_before_exit(folder, quiet_s=3600) is None, "and not for long enough"


def test_a_later_checkpoint_is_a_sign_of_life_and_what_holdfast_wrote_is_not(tmp_path: Path) -> None:
    older = save(tmp_path, checkpoint_name(1, 0))
    folder = save(tmp_path, NAME)
    await_tick(folder)
    VolumeStore(tmp_path).put(checkpoint_name(1, 0), older, ABOUT)
    (tmp_path / "attempt-0" / ".holdfast-partial-x").touch()
    before = completed_before_exit(folder, quiet_s=0)
    save(tmp_path, checkpoint_name(4, 0), {"model.bin": b"just begun"})
    assert before is None
    assert completed_before_exit(folder, quiet_s=0)


def test_a_watch_leaves_a_sign_of_life(tmp_path: Path) -> None:
    save(tmp_path, NAME, MODEL)
    watching(tmp_path).scan(0)
    assert (tmp_path / "attempt-0" / HEARTBEAT_FILE).exists()


def test_a_watch_goes_on_where_it_can_not_leave_a_sign(tmp_path: Path) -> None:
    mark(save(tmp_path, NAME), 1, 0)
    (tmp_path / "attempt-0" / HEARTBEAT_FILE).symlink_to(tmp_path / "outside")
    assert only(watching(tmp_path).scan(0)).complete
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("odd", ODD)
def test_a_watch_goes_on_whatever_a_training_puts_in_the_place_of_a_sign_or_a_marker(
    tmp_path: Path, odd: Oddity
) -> None:
    mark(save(tmp_path, NAME), 1, 0)
    odd(tmp_path / "attempt-0" / HEARTBEAT_FILE)
    assert only(watching(tmp_path).scan(0)).complete
    (tmp_path / NAME.folder / MARKER).unlink()
    odd(tmp_path / NAME.folder / MARKER)
    assert read_markers(tmp_path / NAME.folder) is None
