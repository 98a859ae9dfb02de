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
from tests.checkpoints.backends import BucketBackend, StoreBackend
from tests.checkpoints.making import ABOUT, MODEL, content, fill, save

FIRST, SECOND = checkpoint_name(3, 0), checkpoint_name(7, 1)


def test_a_new_job_has_no_checkpoint(backend: StoreBackend) -> None:
    assert backend.store.names(until=5) == []
    assert backend.store.manifest(FIRST) is None
    assert backend.store.read_decision(0) is None


def test_a_checkpoint_comes_back_as_it_was_saved(backend: StoreBackend, tmp_path: Path) -> None:
    saved = backend.put(FIRST)
    assert backend.store.manifest(FIRST) == saved
    got = backend.store.get(FIRST, tmp_path / "attempt-1" / FIRST.folder_name)
    assert got == saved
    assert content(tmp_path / "attempt-1" / FIRST.folder_name) == MODEL


def test_a_copy_has_a_manifest_of_its_own_and_can_be_checked_where_it_is(backend: StoreBackend, tmp_path: Path) -> None:
    backend.put(FIRST)
    given = checkpoint_name(FIRST.epoch, 4)
    backend.store.get(FIRST, tmp_path / "copies" / given.folder)
    assert VolumeStore(tmp_path / "copies").verify(given) == backend.store.verify(FIRST)


def test_the_newest_comes_first_and_newer_attempts_are_not_looked_at(backend: StoreBackend) -> None:
    for name in (FIRST, SECOND, checkpoint_name(7, 0), checkpoint_name(1, 2), checkpoint_name(9, 3)):
        backend.put(name)
    assert backend.store.names(until=2) == [SECOND, checkpoint_name(7, 0), FIRST, checkpoint_name(1, 2)]


def test_what_has_another_name_is_no_checkpoint(backend: StoreBackend) -> None:
    backend.put(FIRST)
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
        backend.write(key, b"something else")
    assert backend.store.names(until=5) == [FIRST]


def test_numbers_filled_up_with_zeros_keep_their_spelling(backend: StoreBackend, tmp_path: Path) -> None:
    padded = checkpoint_name(7, 0)._replace(folder_name="checkpoint-epoch-007")
    backend.put(padded)
    assert backend.store.names(until=0) == [padded]
    assert backend.store.get(padded, tmp_path / "got").epoch == 7


def test_files_without_a_manifest_do_not_count(backend: StoreBackend, tmp_path: Path) -> None:
    backend.write(f"{FIRST.folder}/model.bin", b"half")
    assert backend.store.manifest(FIRST) is None
    with pytest.raises(CheckpointNotFound, match="no complete checkpoint-epoch-3 of attempt 0"):
        backend.store.get(FIRST, tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_file_names_in_any_script_are_stored(backend: StoreBackend, tmp_path: Path) -> None:
    odd = {
        "a b/ü ö.bin": b"1",
        "100%/#?*&=+.bin": b"2",
        "日本/😀": b"3",
        "x..y/..z/.hidden": b"4",
        "a:b|c~d[e]{f}": b"5",
        "deep/" * 20 + "file": b"6",
    }
    backend.put(FIRST, odd)
    backend.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == odd


def test_files_larger_than_a_part_are_kept(backend: StoreBackend, tmp_path: Path) -> None:
    large = {"model.bin": os.urandom(1 << 20) * 12 + b"end", "optimizer.bin": os.urandom(5 << 20)}
    backend.put(FIRST, large)
    backend.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == large


def test_an_empty_folder_is_not_kept(backend: StoreBackend) -> None:
    folder = save(backend.volume, FIRST, {})
    with pytest.raises(Incomplete, match="holds no file yet"):
        backend.store.put(FIRST, folder, ABOUT)
    assert backend.store.manifest(FIRST) is None


@pytest.mark.parametrize("path", ["model.bin", "empty"])
def test_a_changed_file_is_noticed_and_the_target_left_alone(backend: StoreBackend, tmp_path: Path, path: str) -> None:
    backend.put(FIRST)
    backend.write(f"{FIRST.folder}/{path}", b"WEIGHTS" if path == "model.bin" else b"not empty")
    with pytest.raises(Corrupt, match=path):
        backend.store.verify(FIRST)
    fill(tmp_path / "target", {"old": b"old"})
    with pytest.raises(Corrupt, match=path):
        backend.store.get(FIRST, tmp_path / "target")
    assert content(tmp_path / "target") == {"old": b"old"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".holdfast-")] == []


def test_a_missing_file_is_noticed(backend: StoreBackend, tmp_path: Path) -> None:
    backend.put(FIRST)
    backend.remove(f"{FIRST.folder}/model.bin")
    with pytest.raises(Corrupt, match=r"model\.bin"):
        backend.store.verify(FIRST)
    with pytest.raises(Corrupt, match=r"model\.bin"):
        backend.store.get(FIRST, tmp_path / "got")


def test_a_truncated_file_is_noticed(backend: StoreBackend) -> None:
    backend.put(FIRST)
    backend.write(f"{FIRST.folder}/model.bin", b"weigh")
    with pytest.raises(Corrupt, match="should have 7 bytes and has 5"):
        backend.store.verify(FIRST)


def test_a_restore_replaces_what_is_in_its_place(backend: StoreBackend, tmp_path: Path) -> None:
    backend.put(FIRST)
    fill(tmp_path / "got", {"old": b"old", "model.bin": b"old"})
    backend.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == MODEL


def test_an_interrupted_restore_is_gone_on_with(backend: StoreBackend, tmp_path: Path) -> None:
    backend.put(FIRST)
    partial = tmp_path / ".holdfast-restoring-got"
    fill(partial, {"model.bin": b"weights", "state/position.json": b"xx", "left/over": b"", "empty/not": b""})
    backend.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == MODEL
    assert not partial.exists()


def test_a_manifest_of_another_checkpoint_is_not_believed(backend: StoreBackend) -> None:
    backend.put(FIRST)
    backend.put(SECOND)
    backend.write(f"{FIRST.folder}/{MANIFEST}", backend.read(f"{SECOND.folder}/{MANIFEST}"))
    with pytest.raises(InvalidCheckpointManifest, match="another checkpoint"):
        backend.store.manifest(FIRST)


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
def test_a_manifest_that_can_not_be_read_is_refused(backend: StoreBackend, written: bytes, said: str) -> None:
    backend.put(FIRST)
    backend.write(f"{FIRST.folder}/{MANIFEST}", written)
    with pytest.raises(InvalidCheckpointManifest, match=said):
        backend.store.manifest(FIRST)


@pytest.mark.parametrize("path", ["../../victim", "/victim", "a/../../victim", "a\\..\\victim", "a//victim"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(backend: StoreBackend, tmp_path: Path, path: str) -> None:
    backend.put(FIRST)
    written = json.loads(backend.read(f"{FIRST.folder}/{MANIFEST}"))
    for changed in ({"path": path}, {"keptAt": path}):
        files = [{**written["files"][0], **changed}]
        backend.write(f"{FIRST.folder}/{MANIFEST}", json.dumps({**written, "files": files}).encode())
        with pytest.raises(InvalidCheckpointManifest, match="is refused"):
            backend.store.get(FIRST, tmp_path / "attempt-1" / FIRST.folder_name)
    assert not (tmp_path / "attempt-1").exists()


def test_a_huge_manifest_is_not_read(backend: StoreBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.put(FIRST)
    monkeypatch.setattr(manifests, "MAX_BYTES", 100)
    with pytest.raises(UnsafeContent, match="larger than"):
        backend.store.manifest(FIRST)


def test_a_deleted_checkpoint_is_gone_with_all_its_files(backend: StoreBackend) -> None:
    backend.put(FIRST)
    backend.put(SECOND)
    backend.store.delete(FIRST)
    assert backend.store.names(until=5) == [SECOND]
    assert backend.all_keys(FIRST.folder) == set()
    backend.store.delete(FIRST)


def test_quarantine_keeps_every_file_and_nothing_reads_it_again(backend: StoreBackend) -> None:
    backend.put(FIRST)
    backend.write(f"{FIRST.folder}/model.bin", b"damaged")
    assert backend.store.quarantine(FIRST).endswith("quarantine/attempt-0-checkpoint-epoch-3")
    assert backend.store.names(until=5) == []
    assert backend.read("quarantine/attempt-0-checkpoint-epoch-3/model.bin") == b"damaged"
    assert backend.read(f"quarantine/attempt-0-checkpoint-epoch-3/{MANIFEST}")


def test_what_is_in_quarantine_is_never_replaced(backend: StoreBackend) -> None:
    for damaged in (b"first", b"second"):
        backend.put(FIRST, {"model.bin": damaged})
        last = backend.store.quarantine(FIRST)
    assert last.endswith("checkpoint-epoch-3-2")
    assert backend.read("quarantine/attempt-0-checkpoint-epoch-3/model.bin") == b"first"
    assert backend.read("quarantine/attempt-0-checkpoint-epoch-3-2/model.bin") == b"second"


def test_a_note_is_read_by_others(backend: StoreBackend) -> None:
    backend.store.write_decision(2, b"one")
    backend.store.write_decision(2, b"two")
    assert backend.store.read_decision(2) == b"two"
    assert backend.store.read_decision(1) is None
    assert backend.store.names(until=9) == []


def test_putting_twice_changes_nothing(backend: StoreBackend) -> None:
    first = backend.put(FIRST)
    before = {key: backend.read(key) for key in backend.all_keys()}
    assert backend.store.put(FIRST, backend.volume / FIRST.folder, ABOUT) == first
    assert {key: backend.read(key) for key in backend.all_keys()} == before


def test_a_checkpoint_that_is_saved_anew_under_its_name_replaces_the_old_one(
    backend: StoreBackend, tmp_path: Path
) -> None:
    backend.put(FIRST)
    again = {"model.bin": b"WEIGHTS", "state/position.json": b"{}", "new": b"file"}
    (backend.volume / FIRST.folder / "empty").unlink()
    backend.put(FIRST, again)
    backend.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == again
    if isinstance(backend, BucketBackend):
        assert f"{FIRST.folder}/empty" not in backend.all_keys(), "what no manifest speaks of is gone"


def test_what_can_not_be_a_checkpoint_is_refused_before_anything_is_kept(backend: StoreBackend) -> None:
    folder = save(backend.volume, FIRST)
    (folder / "link").symlink_to("/etc/hostname")
    with pytest.raises(UnsafeContent, match="leads out of the checkpoint's folder"):
        backend.store.put(FIRST, folder, ABOUT)
    assert backend.store.manifest(FIRST) is None


def test_links_that_stay_in_the_folder_become_files(backend: StoreBackend, tmp_path: Path) -> None:
    folder = save(backend.volume, FIRST)
    (folder / "latest.bin").symlink_to("model.bin")
    (folder / "position").symlink_to("state")
    backend.store.put(FIRST, folder, ABOUT)
    backend.store.get(FIRST, tmp_path / "got")
    assert content(tmp_path / "got") == {**MODEL, "latest.bin": b"weights", "position/position.json": b"{}"}
    assert not (tmp_path / "got" / "latest.bin").is_symlink()


def test_every_error_is_one_sentence_for_a_person(backend: StoreBackend, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        backend.store.get(FIRST, tmp_path / "got")
    assert backend.store.address in str(raised.value)
    assert "\n" not in str(raised.value)
