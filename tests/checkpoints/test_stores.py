"""What every store does, on a volume as in the three object stores."""

import json
import os
from pathlib import Path

import pytest

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.errors import (
    CheckpointError,
    CheckpointNotFound,
    Corrupt,
    Incomplete,
    InvalidCheckpointManifest,
    UnsafeContent,
)
from holdfast.checkpoints.manifest import MANIFEST, checkpoint_name
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.making import ABOUT, MODEL, content, fill, save
from tests.checkpoints.places import BucketBackend, Place

FIRST, SECOND = checkpoint_name(3, 0), checkpoint_name(7, 1)


def test_a_new_job_has_no_checkpoint(place: Place) -> None:
    assert place.store.names(until=5) == []
    assert place.store.manifest(FIRST) is None
    assert place.store.read_decision(0) is None


def test_a_checkpoint_comes_back_as_it_was_saved(place: Place, tmp_path: Path) -> None:
    saved = place.put(FIRST)
    assert place.store.manifest(FIRST) == saved
    got = place.store.get(FIRST, tmp_path / "attempt-1" / FIRST.folder_name)
    assert got == saved
    assert content(tmp_path / "attempt-1" / FIRST.folder_name) == MODEL


def test_a_copy_has_a_manifest_of_its_own_and_can_be_checked_where_it_is(place: Place, tmp_path: Path) -> None:
    place.put(FIRST)
    given = checkpoint_name(FIRST.epoch, 4)
    place.store.get(FIRST, tmp_path / "copies" / given.folder)
    assert VolumeStore(tmp_path / "copies").verify(given) == place.store.verify(FIRST)


def test_the_newest_comes_first_and_newer_attempts_are_not_looked_at(place: Place) -> None:
    for name in (FIRST, SECOND, checkpoint_name(7, 0), checkpoint_name(1, 2), checkpoint_name(9, 3)):
        place.put(name)
    assert place.store.names(until=2) == [SECOND, checkpoint_name(7, 0), FIRST, checkpoint_name(1, 2)]


def test_what_has_another_name_is_no_checkpoint(place: Place) -> None:
    place.put(FIRST)
    for key in (
        "attempt-0/checkpoint-epoch-9.partial/model.bin",
        "attempt-0/.checkpoint-epoch-9.partial/model.bin",
        "attempt-00/checkpoint-epoch-9/model.bin",
        "attempt-x/checkpoint-epoch-9/model.bin",
        "quarantine/checkpoint-epoch-9/model.bin",
        "tensorboard/attempt-0/checkpoint-epoch-9/model.bin",
        "checkpoint-epoch-9/model.bin",
        "attempt-0/events",
    ):
        place.write(key, b"something else")
    assert place.store.names(until=5) == [FIRST]


def test_numbers_filled_up_with_zeros_keep_their_spelling(place: Place, tmp_path: Path) -> None:
    padded = checkpoint_name(7, 0)._replace(folder_name="checkpoint-epoch-007")
    place.put(padded)
    assert place.store.names(until=0) == [padded]
    assert place.store.get(padded, tmp_path / "got").epoch == 7


def test_files_without_a_manifest_do_not_count(place: Place, tmp_path: Path) -> None:
    place.write(f"{FIRST.folder}/model.bin", b"half")
    assert place.store.manifest(FIRST) is None
    with pytest.raises(CheckpointNotFound, match="no complete checkpoint-epoch-3 of attempt 0"):
        place.store.get(FIRST, tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_file_names_in_any_script_are_stored(place: Place, tmp_path: Path) -> None:
    odd = {
        "a b/ü ö.bin": b"1",
        "100%/#?*&=+.bin": b"2",
        "日本/😀": b"3",
        "x..y/..z/.hidden": b"4",
        "a:b|c~d[e]{f}": b"5",
        "deep/" * 20 + "file": b"6",
    }
    place.put(FIRST, odd)
    place.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == odd


def test_files_larger_than_a_part_are_kept(place: Place, tmp_path: Path) -> None:
    large = {"model.bin": os.urandom(1 << 20) * 12 + b"end", "optimizer.bin": os.urandom(5 << 20)}
    place.put(FIRST, large)
    place.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == large


def test_an_empty_folder_is_not_kept(place: Place) -> None:
    folder = save(place.volume, FIRST, {})
    with pytest.raises(Incomplete, match="holds no file yet"):
        place.store.put(FIRST, folder, ABOUT)
    assert place.store.manifest(FIRST) is None


@pytest.mark.parametrize("path", ["model.bin", "empty"])
def test_a_changed_file_is_noticed_and_the_target_left_alone(place: Place, tmp_path: Path, path: str) -> None:
    place.put(FIRST)
    place.write(f"{FIRST.folder}/{path}", b"WEIGHTS" if path == "model.bin" else b"not empty")
    with pytest.raises(Corrupt, match=path):
        place.store.verify(FIRST)
    fill(tmp_path / "target", {"old": b"old"})
    with pytest.raises(Corrupt, match=path):
        place.store.get(FIRST, tmp_path / "target")
    assert content(tmp_path / "target") == {"old": b"old"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".holdfast-")] == []


def test_a_missing_file_is_noticed(place: Place, tmp_path: Path) -> None:
    place.put(FIRST)
    place.remove(f"{FIRST.folder}/model.bin")
    with pytest.raises(Corrupt, match=r"model\.bin"):
        place.store.verify(FIRST)
    with pytest.raises(Corrupt, match=r"model\.bin"):
        place.store.get(FIRST, tmp_path / "got")


def test_a_truncated_file_is_noticed(place: Place) -> None:
    place.put(FIRST)
    place.write(f"{FIRST.folder}/model.bin", b"weigh")
    with pytest.raises(Corrupt, match="should have 7 bytes and has 5"):
        place.store.verify(FIRST)


def test_a_restore_replaces_what_is_in_its_place(place: Place, tmp_path: Path) -> None:
    place.put(FIRST)
    fill(tmp_path / "got", {"old": b"old", "model.bin": b"old"})
    place.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == MODEL


def test_an_interrupted_restore_is_gone_on_with(place: Place, tmp_path: Path) -> None:
    place.put(FIRST)
    partial = tmp_path / ".holdfast-restoring-got"
    fill(partial, {"model.bin": b"weights", "state/position.json": b"xx", "left/over": b"", "empty/not": b""})
    place.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == MODEL
    assert not partial.exists()


def test_a_manifest_of_another_checkpoint_is_not_believed(place: Place) -> None:
    place.put(FIRST)
    place.put(SECOND)
    place.write(f"{FIRST.folder}/{MANIFEST}", place.read(f"{SECOND.folder}/{MANIFEST}"))
    with pytest.raises(InvalidCheckpointManifest, match="another checkpoint"):
        place.store.manifest(FIRST)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b'{"version":2}', "knows 1: use a newer holdfast"),
        (b'{"version":true}', "knows 1"),
    ],
)
def test_a_manifest_that_can_not_be_read_is_refused(place: Place, written: bytes, said: str) -> None:
    place.put(FIRST)
    place.write(f"{FIRST.folder}/{MANIFEST}", written)
    with pytest.raises(InvalidCheckpointManifest, match=said):
        place.store.manifest(FIRST)


@pytest.mark.parametrize("path", ["../../victim", "/victim", "a/../../victim", "a\\..\\victim", "a//victim"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(place: Place, tmp_path: Path, path: str) -> None:
    place.put(FIRST)
    written = json.loads(place.read(f"{FIRST.folder}/{MANIFEST}"))
    for changed in ({"path": path}, {"keptAt": path}):
        files = [{**written["files"][0], **changed}]
        place.write(f"{FIRST.folder}/{MANIFEST}", json.dumps({**written, "files": files}).encode())
        with pytest.raises(InvalidCheckpointManifest, match="is refused"):
            place.store.get(FIRST, tmp_path / "attempt-1" / FIRST.folder_name)
    assert not (tmp_path / "attempt-1").exists()


def test_a_huge_manifest_is_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(FIRST)
    monkeypatch.setattr(manifests, "MAX_BYTES", 100)
    with pytest.raises(UnsafeContent, match="larger than"):
        place.store.manifest(FIRST)


def test_a_deleted_checkpoint_is_gone_with_all_its_files(place: Place) -> None:
    place.put(FIRST)
    place.put(SECOND)
    place.store.delete(FIRST)
    assert place.store.names(until=5) == [SECOND]
    assert place.all_keys(FIRST.folder) == set()
    place.store.delete(FIRST)


def test_quarantine_keeps_every_file_and_nothing_reads_it_again(place: Place) -> None:
    place.put(FIRST)
    place.write(f"{FIRST.folder}/model.bin", b"damaged")
    assert place.store.quarantine(FIRST).endswith("quarantine/attempt-0-checkpoint-epoch-3")
    assert place.store.names(until=5) == []
    assert place.read("quarantine/attempt-0-checkpoint-epoch-3/model.bin") == b"damaged"
    assert place.read(f"quarantine/attempt-0-checkpoint-epoch-3/{MANIFEST}")


def test_what_is_in_quarantine_is_never_replaced(place: Place) -> None:
    for damaged in (b"first", b"second"):
        place.put(FIRST, {"model.bin": damaged})
        last = place.store.quarantine(FIRST)
    assert last.endswith("checkpoint-epoch-3-2")
    assert place.read("quarantine/attempt-0-checkpoint-epoch-3/model.bin") == b"first"
    assert place.read("quarantine/attempt-0-checkpoint-epoch-3-2/model.bin") == b"second"


def test_a_note_is_read_by_others(place: Place) -> None:
    place.store.write_decision(2, b"one")
    place.store.write_decision(2, b"two")
    assert place.store.read_decision(2) == b"two"
    assert place.store.read_decision(1) is None
    assert place.store.names(until=9) == []


def test_putting_twice_changes_nothing(place: Place) -> None:
    first = place.put(FIRST)
    before = {key: place.read(key) for key in place.all_keys()}
    assert place.store.put(FIRST, place.volume / FIRST.folder, ABOUT) == first
    assert {key: place.read(key) for key in place.all_keys()} == before


def test_a_checkpoint_that_is_saved_anew_under_its_name_replaces_the_old_one(place: Place, tmp_path: Path) -> None:
    place.put(FIRST)
    again = {"model.bin": b"WEIGHTS", "state/position.json": b"{}", "new": b"file"}
    (place.volume / FIRST.folder / "empty").unlink()
    place.put(FIRST, again)
    place.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == again
    if isinstance(place, BucketBackend):
        assert f"{FIRST.folder}/empty" not in place.all_keys(), "what no manifest speaks of is gone"


def test_what_can_not_be_a_checkpoint_is_refused_before_anything_is_kept(place: Place) -> None:
    folder = save(place.volume, FIRST)
    (folder / "link").symlink_to("/etc/hostname")
    with pytest.raises(UnsafeContent, match="leads out of the checkpoint's folder"):
        place.store.put(FIRST, folder, ABOUT)
    assert place.store.manifest(FIRST) is None


def test_links_that_stay_in_the_folder_become_files(place: Place, tmp_path: Path) -> None:
    folder = save(place.volume, FIRST)
    (folder / "latest.bin").symlink_to("model.bin")
    (folder / "position").symlink_to("state")
    place.store.put(FIRST, folder, ABOUT)
    place.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == {**MODEL, "latest.bin": b"weights", "position/position.json": b"{}"}
    assert not (tmp_path / "got" / "latest.bin").is_symlink()


def test_every_error_is_one_sentence_for_a_person(place: Place, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        place.store.get(FIRST, tmp_path / "got")
    assert place.store.address in str(raised.value)
    assert "\n" not in str(raised.value)
