"""What is special about a volume: it is shared, may be full or read-only, and forgets at a power cut."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints import files as disk
from holdfast.checkpoints.completeness import MARKER
from holdfast.checkpoints.errors import (
    AccessDenied,
    CheckpointError,
    Corrupt,
    Incomplete,
    InvalidCheckpointManifest,
    InvalidStoreUrl,
    ReadOnly,
    StorageFull,
    StoreError,
    UnsafeContent,
)
from holdfast.checkpoints.manifest import MANIFEST, checkpoint_name
from holdfast.checkpoints.resume import resume
from holdfast.checkpoints.retention import stored_checkpoints
from holdfast.checkpoints.store import decision_path
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.crashing import dying_os
from tests.checkpoints.making import ABOUT, MODEL, ODD, Oddity, content, fill, save

NAME = checkpoint_name(3, 0)


@pytest.fixture
def store(tmp_path: Path) -> VolumeStore:
    return VolumeStore(tmp_path)


class FailingOs:
    """Every write fails, as on a disk that is full."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (errno.ENOSPC, StorageFull, "give the volume more space"),
        (errno.EDQUOT, StorageFull, "raise the quota"),
        (errno.EROFS, ReadOnly, "mount a volume that can be written to"),
        (errno.EACCES, AccessDenied, f"let user {os.getuid()} or group {os.getgid()}"),
        (errno.ENOTDIR, InvalidStoreUrl, "a file is in the place of a folder"),
        (errno.EIO, StoreError, "look at the volume"),
    ],
)
def test_an_error_of_the_volume_is_explained(
    number: int, kind: type[CheckpointError], advice: str, store: VolumeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(store.root, NAME)
    monkeypatch.setattr(disk, "os", FailingOs(number))
    with pytest.raises(CheckpointError, match=advice) as raised:
        store.put(NAME, folder, ABOUT)
    assert type(raised.value) is kind
    assert content(folder) == MODEL


def test_a_restore_that_fills_the_volume_gives_its_space_back(
    store: VolumeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(NAME, save(store.root, NAME), ABOUT)
    monkeypatch.setattr(disk, "os", FailingOs(errno.ENOSPC))
    with pytest.raises(StorageFull, match="put a checkpoint into"):
        store.get(NAME, tmp_path / "attempt-1" / NAME.folder_name)
    assert list((tmp_path / "attempt-1").iterdir()) == []


def test_a_manifest_is_written_after_all_files_are_on_the_disk(store: VolumeStore) -> None:
    folder = save(store.root, NAME)
    synced: list[str] = []
    with dying_os() as dying:
        fsync = dying.fsync

        def note(descriptor: int) -> None:
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            fsync(descriptor)

        dying.fsync = note  # type: ignore[method-assign]  # it is watched, not changed
        store.put(NAME, folder, ABOUT)
    files = {"model.bin", "position.json", "empty", "state"}
    assert files <= set(synced[: synced.index(".holdfast-partial-checkpoint-epoch-3")])
    assert synced[-1] == NAME.folder_name


def test_links_are_no_attempts_and_no_checkpoints(store: VolumeStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    store.put(NAME, save(store.root, NAME), ABOUT)
    fill(elsewhere / "checkpoint-epoch-9", MODEL)
    (store.root / "attempt-1").symlink_to(elsewhere)
    (store.root / "attempt-0" / "checkpoint-epoch-9").symlink_to(elsewhere / "checkpoint-epoch-9")
    assert store.names(5) == [NAME]


def test_a_link_that_appears_after_the_digest_is_not_followed(store: VolumeStore, tmp_path: Path) -> None:
    folder = save(store.root, NAME)
    store.put(NAME, folder, ABOUT)
    fill(tmp_path, {"secret": b"weights"})
    (folder / "model.bin").unlink()
    (folder / "model.bin").symlink_to("../../secret")
    with pytest.raises(Corrupt, match="was changed after it was saved"):
        store.get(NAME, tmp_path / "attempt-1" / NAME.folder_name)
    assert resume(store, tmp_path / "attempt-1", 1, ABOUT, lambda _: None) is None
    assert (tmp_path / "secret").read_bytes() == b"weights"


@pytest.mark.parametrize("odd", ODD)
def test_what_a_training_puts_in_the_place_of_a_manifest_or_a_note_is_none(store: VolumeStore, odd: Oddity) -> None:
    odd(save(store.root, NAME) / MANIFEST)
    odd(store.root / decision_path(0))
    with pytest.raises(InvalidCheckpointManifest):
        store.manifest(NAME)
    assert [found.valid for found in stored_checkpoints(store, 0)] == [False]
    assert resume(store, store.root / "attempt-1", 1, ABOUT, lambda _: None) is None


def test_a_pipe_in_the_place_of_a_file_that_is_written_holds_up_nobody(store: VolumeStore) -> None:
    folder = save(store.root, NAME)
    os.mkfifo(folder.with_name(f".holdfast-partial-{NAME.folder_name}"))
    with pytest.raises(StoreError, match=r"can't write the manifest|can't digest"):
        store.put(NAME, folder, ABOUT)
    store.remove_interrupted(0)
    store.put(NAME, folder, ABOUT)


def test_quarantine_does_not_follow_a_link(store: VolumeStore, tmp_path: Path) -> None:
    store.put(NAME, save(store.root, NAME), ABOUT)
    (tmp_path / "elsewhere").mkdir()
    (store.root / "quarantine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidStoreUrl, match="a link is in the place of a folder"):
        store.quarantine(NAME)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_of_interrupted_saves_are_removed_and_everything_else_stays(store: VolumeStore) -> None:
    store.put(NAME, save(store.root, NAME), ABOUT)
    attempt = store.root / "attempt-0"
    for name in (".holdfast-restoring-x", ".holdfast-deleted-x", ".checkpoint-epoch-4.partial", "mine"):
        fill(attempt / name, MODEL)
    (attempt / ".holdfast-partial-x").touch()
    (attempt / ".holdfast-deleted-x" / "locked").mkdir(mode=0o500)
    fill(store.root / "attempt-7" / ".holdfast-deleted-x", MODEL)
    store.remove_interrupted(until=3)
    assert {path.name for path in attempt.iterdir()} == {NAME.folder_name, ".checkpoint-epoch-4.partial", "mine"}
    assert (store.root / "attempt-7" / ".holdfast-deleted-x").exists()


def test_deleting_removes_links_and_not_what_they_lead_to(store: VolumeStore, tmp_path: Path) -> None:
    folder = save(store.root, NAME)
    fill(tmp_path, {"precious/file": b"1"})
    (folder / "link").symlink_to(tmp_path / "precious")
    store.delete(NAME)
    assert not folder.exists()
    assert (tmp_path / "precious" / "file").read_bytes() == b"1"


def test_a_checkpoint_is_checked_where_it_is(store: VolumeStore) -> None:
    folder = save(store.root, NAME)
    saved = store.put(NAME, folder, ABOUT)
    assert store.get(NAME, folder) == saved
    (folder / "model.bin").write_bytes(b"WEIGHTS")
    with pytest.raises(Corrupt):
        store.get(NAME, folder)
    assert (folder / MANIFEST).exists()


def test_a_checkpoint_from_elsewhere_is_not_kept_as_if_it_were_there(store: VolumeStore, tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", MODEL)
    with pytest.raises(UnsafeContent, match="checkpoints stay where they are written"):
        store.put(NAME, tmp_path / "elsewhere", ABOUT)


def test_a_volume_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    store = VolumeStore(tmp_path / "not" / "yet")
    assert store.names(3) == []
    store.write_decision(1, b"x")
    assert store.read_decision(1) == b"x"


def test_a_manifest_goes_into_the_folder_that_was_read_and_not_into_one_that_took_its_name(
    store: VolumeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = save(tmp_path, NAME), disk.write_manifest

    def meanwhile(*arguments: Any) -> None:
        folder.rename(tmp_path / "replaced")
        save(tmp_path, NAME, {"model.bin": b"saved anew"})
        written(*arguments)

    monkeypatch.setattr(disk, "write_manifest", meanwhile)
    store.put(NAME, folder, ABOUT)
    assert store.manifest(NAME) is None
    assert (tmp_path / "replaced" / MANIFEST).exists()


def test_a_folder_that_lacks_shards_gets_no_manifest(store: VolumeStore, tmp_path: Path) -> None:
    folder = save(tmp_path, NAME, {**MODEL, f"{MARKER}-0": b'{"shards": 2}'})
    with pytest.raises(Incomplete, match="lacks shards"):
        store.put(NAME, folder, ABOUT)


def test_the_step_is_in_the_manifest_and_in_every_copy(store: VolumeStore, tmp_path: Path) -> None:
    folder = save(tmp_path, NAME, {**MODEL, MARKER: b'{"step": 7, "metrics": {"loss": 0.5}}'})
    store.put(NAME, folder, ABOUT)
    store.get(NAME, tmp_path / "attempt-1" / NAME.folder_name)
    copied = store.manifest(checkpoint_name(3, 1))
    assert copied is not None
    assert (copied.step, copied.metrics) == (7, {"loss": 0.5})
