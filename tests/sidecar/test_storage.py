"""Where checkpoints are kept, and which part of that is a worker's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints.completeness import HEARTBEAT_FILE, FolderScan
from holdfast.checkpoints.files import list_files
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar.storage import (
    CheckpointBackend,
    ObjectStoreUpload,
    PrimaryVolume,
    SecondaryVolume,
    is_newer,
    superseded,
)
from tests.checkpoints.memory import MemoryBucket
from tests.sidecar.volumes import checkpoint

ABOUT = SaveInfo("uid-1", "2026-01-01T00:00:00Z")
DECLARED = {"model.bin": "weights", ".holdfast-complete": '{"shards": 1, "ranks": [0]}'}


def saved(root: Path, *epochs: int, attempt: int = 0) -> None:
    for epoch in epochs:
        checkpoint(root, attempt, f"checkpoint-epoch-{epoch}", DECLARED)


def kept(volume: PrimaryVolume, looks: list[FolderScan]) -> None:
    for looked in looks:
        volume.persist(looked, ABOUT, {})


def epochs(root: Path, attempt: int = 0) -> list[int]:
    return [name.epoch for name in VolumeStore(root).names(attempt)]


def test_a_checkpoint_is_kept_once_it_has_a_manifest_and_until_it_changes(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    volume = PrimaryVolume(tmp_path / "attempt-0", 0)
    (looked,) = volume.scan(0.0)
    assert looked.complete
    assert not volume.is_persisted(looked)
    volume.persist(looked, ABOUT, {})
    assert volume.is_persisted(volume.scan(1.0)[0])
    (tmp_path / "attempt-0" / "checkpoint-epoch-1" / "model.bin").write_text("weights of a new save")
    assert not volume.is_persisted(volume.scan(2.0)[0])


def test_a_sidecar_that_starts_anew_sees_what_was_kept(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    kept(PrimaryVolume(tmp_path / "attempt-0", 0), PrimaryVolume(tmp_path / "attempt-0", 0).scan(0.0))
    again = PrimaryVolume(tmp_path / "attempt-0", 0)
    assert again.is_persisted(again.scan(0.0)[0])


def test_the_newest_stay_and_how_many_is_told(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    volume = PrimaryVolume(tmp_path / "attempt-0", 0)
    looks = volume.scan(0.0)
    kept(volume, looks)
    assert volume.apply_retention(looks, 2, set(), "loss").epochs == 2
    assert epochs(tmp_path) == [4, 3]


def test_what_was_never_digested_goes_when_enough_newer_ones_are_valid(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    volume = PrimaryVolume(tmp_path / "attempt-0", 0)
    looks = volume.scan(0.0)
    kept(volume, looks[:1])
    assert volume.apply_retention(looks, 2, set(), "loss").epochs == 1
    assert epochs(tmp_path) == [3, 2, 1]
    kept(volume, looks[1:2])
    assert volume.apply_retention(looks, 2, set(), "loss").epochs == 2
    assert epochs(tmp_path) == [3, 2]


def test_what_is_still_written_and_what_is_needed_stay(tmp_path: Path) -> None:
    saved(tmp_path, 1, 3, 4)
    checkpoint(tmp_path, 0, "checkpoint-epoch-2", {"model.bin": "half"})
    volume = PrimaryVolume(tmp_path / "attempt-0", 0)
    looks = volume.scan(0.0)
    kept(volume, [looked for looked in looks if looked.complete])
    assert volume.apply_retention(looks, 1, {checkpoint_name(1, 0)}, "loss").epochs == 2
    assert epochs(tmp_path) == [4, 2, 1]


def marker(loss: float) -> dict[str, str]:
    return {"model.bin": "weights", ".holdfast-complete": json.dumps({"metrics": {"loss": loss}})}


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_the_best_stays_with_the_newest(tmp_path: Path, is_mirrored: bool) -> None:
    """On the disk of a pod only until it is uploaded."""
    bucket = CountingBucket()
    store = ObjectStore(bucket) if is_mirrored else VolumeStore(tmp_path)
    place: CheckpointBackend = (
        ObjectStoreUpload(tmp_path / "attempt-0", ObjectStore(bucket), 0, index=0, workers=1)
        if is_mirrored
        else PrimaryVolume(tmp_path / "attempt-0", 0)
    )
    for epoch, loss in enumerate([0.9, 0.1, 0.5, 0.4, 0.3], start=1):
        checkpoint(tmp_path, 0, f"checkpoint-epoch-{epoch}", marker(loss))
        (newest, *_) = looks = place.scan(float(epoch))
        place.persist(newest, ABOUT, {"loss": 7.0})
        bucket.reads = 0
        left = place.apply_retention(looks, 1, set(), "loss")
    assert left is not None
    assert (left.epochs, left.best and left.best.name.epoch) == (2, 2)
    assert [name.epoch for name in store.names(0)] == [5, 2]
    assert epochs(tmp_path) == ([5] if is_mirrored else [5, 2])
    assert bucket.reads == (3 if is_mirrored else 0), "of a save: the manifests of the newest two and the best"


class CountingBucket(MemoryBucket):
    reads = 0

    def read(self, key: str, most: int) -> bytes | None:
        self.reads += 1
        return super().read(key, most)


def test_metrics_of_an_epoch_stand_in_the_manifest_where_its_marker_has_none(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    checkpoint(tmp_path, 0, "checkpoint-epoch-2", marker(0.5))
    checkpoint(tmp_path, 0, "checkpoint-epoch-3", {"model.bin": "weights", ".holdfast-complete": '{"step": 7}'})
    volume = PrimaryVolume(tmp_path / "attempt-0", 0)
    for looked in volume.scan(0.0):
        volume.persist(looked, ABOUT, {"loss": 0.25})
    manifests = [VolumeStore(tmp_path).manifest(checkpoint_name(epoch, 0)) for epoch in (1, 2, 3)]
    # What was saved within an epoch is not what the epoch ended with.
    assert [found and found.metrics for found in manifests] == [{"loss": 0.25}, {"loss": 0.5}, {}]


def test_nothing_of_a_newer_attempt_is_deleted(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    saved(tmp_path, 1, attempt=1)
    volume = PrimaryVolume(tmp_path / "attempt-0", 0)
    looks = volume.scan(0.0)
    kept(volume, looks)
    volume.apply_retention(looks, 1, set(), "loss")
    assert [(name.epoch, name.attempt) for name in VolumeStore(tmp_path).names(1)] == [(2, 0), (1, 1)]


def test_when_the_training_has_ended_only_what_is_surely_whole_counts(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    checkpoint(tmp_path, 0, "checkpoint-epoch-2", {"model.bin": "half"})
    volume = PrimaryVolume(tmp_path / "attempt-0", 0, quiet_s=0.0)
    assert [(looked.name.epoch, looked.complete) for looked in volume.final_scan()] == [(2, False), (1, True)]


def test_another_worker_sees_what_worker_0_has_kept_and_vouches_for_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    shared, volume = SecondaryVolume(tmp_path / "attempt-0"), PrimaryVolume(tmp_path / "attempt-0", 0)
    assert shared.scan(0.0) == []
    assert not (tmp_path / "attempt-0" / HEARTBEAT_FILE).exists()
    kept(volume, volume.scan(0.0)[:1])
    (looked,) = shared.scan(1.0)
    assert (looked.name, looked.complete, shared.is_persisted(looked)) == (checkpoint_name(2, 0), True, True)
    kept(volume, volume.scan(2.0)[:1])
    assert shared.scan(3.0) != [looked], "a checkpoint that was saved anew is another"


def test_a_sign_that_is_older_than_a_file_means_nothing(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 0, "checkpoint-epoch-1")
    sign = folder / ".holdfast-sign"
    assert not is_newer(sign, list_files(folder))
    sign.touch()
    assert is_newer(sign, list_files(folder))
    assert not is_newer(sign, ())


@pytest.mark.parametrize(
    ("complete", "valid", "keep", "gone"),
    [
        ({1, 2, 3}, set(), 1, set()),
        ({1, 2, 3}, {3}, 1, {1, 2}),
        ({1, 2, 3}, {3}, 2, set()),
        ({1, 2, 3}, {2, 3}, 2, {1}),
        ({3}, {1, 2}, 1, set()),
    ],
)
def test_only_enough_newer_valid_ones_make_a_checkpoint_superfluous(
    complete: set[int], valid: set[int], keep: int, gone: set[int]
) -> None:
    looks = [FolderScan(checkpoint_name(epoch, 0), True, "", ()) for epoch in complete]
    assert {name.epoch for name in superseded(looks, keep, {checkpoint_name(epoch, 0) for epoch in valid})} == gone


def test_addresses_are_those_that_people_find() -> None:
    name = CheckpointName(3, 0, "checkpoint-epoch-3")
    assert SecondaryVolume(Path("/checkpoints/attempt-0")).address(name) == "/checkpoints/attempt-0/checkpoint-epoch-3"


def test_what_is_saved_anew_while_it_is_uploaded_is_uploaded_next(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    bucket = MemoryBucket()
    mirror = ObjectStoreUpload(tmp_path / "attempt-0", ObjectStore(bucket), 0, index=0, workers=1)
    (looked,) = mirror.scan(0.0)
    put = mirror._store.put

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        kept = put(*arguments, **options)
        (tmp_path / "attempt-0" / "checkpoint-epoch-1").rename(tmp_path / "replaced")
        saved(tmp_path, 1)
        return kept

    mirror._store.put = meanwhile  # type: ignore[method-assign]
    mirror.persist(looked, ABOUT, {})
    (looked,) = mirror.scan(1.0)
    assert not mirror.is_persisted(looked)
    mirror._store.put = put  # type: ignore[method-assign]
    mirror.persist(looked, ABOUT, {})
    assert mirror.is_persisted(looked)


def test_a_checkpoint_within_an_epoch_counts_the_epochs_before_it(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3", {"model.bin": "weights", ".holdfast-complete": '{"step": 7}'})
    volume = PrimaryVolume(tmp_path / "attempt-0", 0)
    for looks in (volume.scan(0.0), volume.final_scan()):
        assert [(looked.step, looked.epochs_done) for looked in looks] == [(7, 2)]
