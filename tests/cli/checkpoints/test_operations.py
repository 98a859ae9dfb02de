"""What the commands find and do, on a volume and on real servers of every object store."""

import json
import shutil
from pathlib import Path

import pytest

from holdfast.checkpoints.errors import CheckpointNotFound
from holdfast.checkpoints.manifest import MANIFEST, CheckpointName, checkpoint_name
from holdfast.cli.checkpoints.operations import UnsafePrune, Which, select_checkpoint
from tests.checkpoints.backends import FolderBackend, StoreBackend
from tests.checkpoints.making import MODEL, save, save_by_rename
from tests.cli.checkpoints.stores import decide, listed, pruned, verified

SIZE = sum(map(len, MODEL.values()))


@pytest.fixture
def volume(tmp_path: Path) -> FolderBackend:
    """For what depends on no store."""
    return FolderBackend(tmp_path)


def put(backend: StoreBackend, *names: CheckpointName) -> None:
    for name in names:
        backend.put(name)


def test_an_empty_store_has_nothing_to_list_verify_prune_or_download(backend: StoreBackend) -> None:
    assert listed(backend) == []
    assert verified(backend) == []
    assert pruned(backend, 1) == []
    with pytest.raises(CheckpointNotFound, match="no valid checkpoint in"):
        select_checkpoint(backend.store, Which())
    with pytest.raises(CheckpointNotFound, match="of epoch 4"):
        verified(backend, 4)


def test_checkpoints_are_listed_newest_first_with_what_their_manifests_say(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(9, 0), checkpoint_name(10, 1), checkpoint_name(9, 1))
    found = listed(backend, attempt=1)
    assert [(one.epoch, one.attempt, one.state) for one in found] == [
        (10, 1, "valid"),
        (9, 1, "valid"),
        (9, 0, "valid"),
    ]
    assert [one.resumes for one in found] == [True, False, False]
    newest = found[0]
    assert (newest.bytes, newest.files, newest.workers) == (SIZE, len(MODEL), 1)
    assert (newest.saved_at, newest.path) == ("2026-01-02T03:04:05Z", "attempt-1/checkpoint-epoch-10")


def test_what_has_no_manifest_is_unfinished_and_the_one_before_it_is_resumed_from(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 0))
    backend.remove(f"{checkpoint_name(2, 0).folder}/{MANIFEST}")
    newest, before = listed(backend, running=True)
    assert (newest.state, newest.resumes, newest.bytes, newest.files) == ("unfinished", False, None, None)
    assert "no manifest" in newest.reason
    assert before.resumes


def test_a_manifest_that_cannot_be_read_makes_a_checkpoint_damaged(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 0))
    backend.write(f"{checkpoint_name(2, 0).folder}/{MANIFEST}", b"{")
    newest, before = listed(backend)
    assert newest.state == "damaged"
    assert "manifest" in newest.reason
    assert before.resumes
    assert [bool(one.damage) for one in verified(backend)] == [True, False]


def test_what_was_set_aside_is_listed_last_and_never_resumed_from(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 0))
    backend.store.quarantine(checkpoint_name(2, 0))
    kept, aside = listed(backend)
    assert kept.resumes
    assert (aside.state, aside.epoch, aside.attempt, aside.bytes) == ("quarantined", 2, 0, SIZE)
    assert aside.path == "quarantine/attempt-0-checkpoint-epoch-2"
    assert not aside.resumes


def test_what_is_no_checkpoint_in_the_quarantine_is_left_out(backend: StoreBackend) -> None:
    backend.write("quarantine/notes/readme.txt", b"mine")
    backend.write("quarantine/attempt-0-checkpoint-epoch-7/model.bin", b"half")
    (aside,) = listed(backend)
    assert (aside.epoch, aside.state, aside.bytes) == (7, "quarantined", None)


def test_what_a_cut_off_worker_saved_later_is_superseded(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(5, 0), checkpoint_name(2, 1))
    decide(backend, 1, checkpoint_name(1, 0))
    five, two, one = listed(backend, attempt=1)
    assert (five.state, two.state, one.state) == ("superseded", "valid", "valid")
    assert "attempt 1 had begun further back" in five.reason
    assert (five.resumes, two.resumes) == (False, True)
    assert select_checkpoint(backend.store, Which()) == checkpoint_name(2, 1)
    assert select_checkpoint(backend.store, Which(epoch=5)) == checkpoint_name(5, 0)


def test_a_later_attempts_checkpoints_of_another_job_are_not_what_a_restart_takes(volume: FolderBackend) -> None:
    put(volume, checkpoint_name(1, 0), checkpoint_name(50, 7))
    other, own = listed(volume, attempt=0)
    assert (other.attempt, other.resumes) == (7, False)
    assert own.resumes


def test_a_complete_checkpoint_without_a_manifest_counts_once_nobody_writes(volume: FolderBackend) -> None:
    put(volume, checkpoint_name(1, 0))
    save_by_rename(volume.volume, checkpoint_name(2, 0))
    newest, before = listed(volume, running=True)
    assert (newest.state, newest.resumes, before.resumes) == ("unfinished", False, True)
    newest, before = listed(volume, running=False)
    assert (newest.state, newest.resumes, before.resumes) == ("undigested", True, False)
    assert listed(volume, attempt=1, running=True)[0].state == "undigested"


def test_verifying_names_every_file_that_is_damaged(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 0))
    folder = checkpoint_name(2, 0).folder
    backend.write(f"{folder}/model.bin", b"WEIGHTS")
    backend.remove(f"{folder}/state/position.json")
    two, one = verified(backend)
    assert (two.saved.epoch, one.saved.epoch) == (2, 1)
    assert len(two.damage) == 2
    assert any("model.bin" in sentence and "digest differs" in sentence for sentence in two.damage)
    assert any("state/position.json is missing" in sentence for sentence in two.damage)
    assert one.damage == ()


def test_a_file_that_is_too_long_or_too_short_is_damaged(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0))
    backend.write("attempt-0/checkpoint-epoch-1/model.bin", b"weights and more")
    backend.write("attempt-0/checkpoint-epoch-1/state/position.json", b"{")
    (found,) = verified(backend, 1)
    assert sorted(found.damage) == [
        "model.bin should have 7 bytes and has more than 7",
        "state/position.json should have 2 bytes and has 1",
    ]


def test_one_epoch_alone_is_verified_in_every_attempt_that_has_it(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 0), checkpoint_name(2, 1))
    assert [(one.saved.epoch, one.saved.attempt) for one in verified(backend, 2)] == [(2, 1), (2, 0)]


def test_a_link_that_leads_out_of_the_checkpoint_is_damage_and_is_not_followed(volume: FolderBackend) -> None:
    put(volume, checkpoint_name(1, 0))
    model = volume.volume / checkpoint_name(1, 0).folder / "model.bin"
    model.rename(volume.volume / "elsewhere.bin")
    model.symlink_to(volume.volume / "elsewhere.bin")
    (found,) = verified(volume)
    assert found.damage == ("model.bin is a link that leads out of the checkpoint's folder",)


def test_a_folder_in_the_place_of_a_file_is_damage(volume: FolderBackend) -> None:
    put(volume, checkpoint_name(1, 0))
    model = volume.volume / checkpoint_name(1, 0).folder / "model.bin"
    model.unlink()
    model.mkdir()
    assert verified(volume)[0].damage == ("model.bin is missing",)


def test_pruning_keeps_the_newest_and_deletes_nothing_without_the_flag(backend: StoreBackend) -> None:
    put(backend, *(checkpoint_name(epoch, 0) for epoch in range(1, 6)))
    assert pruned(backend, 2, delete=False) == [1, 2, 3]
    assert len(listed(backend)) == 5
    assert pruned(backend, 2) == [1, 2, 3]
    assert [one.epoch for one in listed(backend)] == [5, 4]
    assert pruned(backend, 2) == []


def test_pruning_leaves_what_was_set_aside_and_what_lies_beside_the_checkpoints(backend: StoreBackend) -> None:
    put(backend, *(checkpoint_name(epoch, 0) for epoch in (1, 2, 3)))
    backend.store.quarantine(checkpoint_name(2, 0))
    backend.write("tensorboard/events", b"curves")
    backend.write("attempt-0/notes.txt", b"mine")
    assert pruned(backend, 1) == [1]
    assert {"tensorboard/events", "attempt-0/notes.txt"} <= backend.all_keys()
    assert [(one.epoch, one.state) for one in listed(backend)] == [(3, "valid"), (2, "quarantined")]


def test_nothing_is_deleted_while_the_newest_is_damaged_since_a_resume_needs_an_older_one(
    backend: StoreBackend,
) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 0), checkpoint_name(3, 0))
    backend.write("attempt-0/checkpoint-epoch-3/model.bin", b"WEIGHTS")
    with pytest.raises(UnsafePrune, match=r"checkpoint-epoch-3 of attempt 0, is damaged \(the content of model.bin"):
        pruned(backend, 1)
    assert len(listed(backend)) == 3


def test_another_jobs_later_attempts_under_the_same_prefix_are_none_of_a_prunings_business(
    volume: FolderBackend,
) -> None:
    put(volume, checkpoint_name(1, 0), checkpoint_name(2, 0), checkpoint_name(50, 7))
    volume.write("attempt-7/checkpoint-epoch-50/model.bin", b"WEIGHTS")
    assert pruned(volume, 1, attempt=0) == [1]
    assert [one.epoch for one in listed(volume)] == [50, 2]


def test_what_the_running_attempt_resumed_from_stays(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 1), checkpoint_name(3, 1))
    decide(backend, 1, checkpoint_name(1, 0))
    assert pruned(backend, 1, attempt=1) == [2]
    assert [one.epoch for one in listed(backend, attempt=1)] == [3, 1]


def test_a_checkpoint_that_is_being_saved_is_not_pruned_and_unfinished_ones_of_old_attempts_are(
    backend: StoreBackend,
) -> None:
    put(backend, checkpoint_name(1, 0), checkpoint_name(2, 0), checkpoint_name(3, 1), checkpoint_name(4, 1))
    backend.remove(f"{checkpoint_name(1, 0).folder}/{MANIFEST}")
    backend.remove(f"{checkpoint_name(3, 1).folder}/{MANIFEST}")
    assert pruned(backend, 1, attempt=1) == [1, 2]
    assert [(one.epoch, one.state) for one in listed(backend, attempt=1, running=True)] == [
        (4, "valid"),
        (3, "unfinished"),
    ]


def test_the_newest_valid_one_is_chosen_and_of_an_epoch_the_latest_attempts(backend: StoreBackend) -> None:
    put(backend, checkpoint_name(3, 0), checkpoint_name(3, 1), checkpoint_name(4, 1))
    backend.write(f"{checkpoint_name(4, 1).folder}/{MANIFEST}", b"{")
    assert select_checkpoint(backend.store, Which()) == checkpoint_name(3, 1)
    assert select_checkpoint(backend.store, Which(epoch=3)) == checkpoint_name(3, 1)
    with pytest.raises(CheckpointNotFound, match="no valid checkpoint of epoch 4"):
        select_checkpoint(backend.store, Which(epoch=4))


def test_the_best_is_marked_chosen_and_not_pruned(backend: StoreBackend) -> None:
    for epoch, loss in enumerate([0.9, 0.1, 0.5, 0.4], start=1):
        metrics = {"loss": loss, "accuracy": loss}
        backend.put(
            checkpoint_name(epoch, 0), {**MODEL, ".holdfast-complete": json.dumps({"metrics": metrics}).encode()}
        )
    four, three, two, one = listed(backend)
    assert [saved.best for saved in (four, three, two, one)] == [False, False, True, False]
    assert two.metrics == {"loss": 0.1, "accuracy": 0.1}
    assert select_checkpoint(backend.store, Which(best_by="loss")) == checkpoint_name(2, 0)
    assert select_checkpoint(backend.store, Which(best_by="accuracy")) == checkpoint_name(1, 0)
    assert pruned(backend, 1) == [1, 3]
    assert [saved.epoch for saved in listed(backend)] == [4, 2]


def test_without_a_metric_none_is_the_best(volume: FolderBackend) -> None:
    with pytest.raises(CheckpointNotFound, match="there is no valid checkpoint in"):
        select_checkpoint(volume.store, Which(best_by="loss"))
    put(volume, checkpoint_name(1, 0))
    with pytest.raises(CheckpointNotFound, match=r"has the metric loss.*report it at the end of each epoch"):
        select_checkpoint(volume.store, Which(best_by="loss"))
    assert [saved.best for saved in listed(volume)] == [False]


def test_what_does_not_count_is_never_the_best(volume: FolderBackend) -> None:
    for epoch, attempt, loss in [(1, 0, 0.9), (5, 0, 0.1), (6, 0, 0.2), (2, 1, 0.5)]:
        marker = json.dumps({"metrics": {"loss": loss}}).encode()
        volume.put(checkpoint_name(epoch, attempt), {**MODEL, ".holdfast-complete": marker})
    decide(volume, 1, checkpoint_name(1, 0))
    volume.store.quarantine(checkpoint_name(6, 0))
    assert [(saved.epoch, saved.state) for saved in listed(volume, attempt=1) if saved.best] == [(2, "valid")]
    assert select_checkpoint(volume.store, Which(best_by="loss")) == checkpoint_name(2, 1)


def test_a_volume_that_cannot_be_read_is_named_as_unreadable(volume: FolderBackend) -> None:
    shutil.rmtree(volume.volume)
    volume.volume.write_text("a file")
    with pytest.raises(Exception, match="a file is in the place of a folder"):
        listed(volume)


def test_numbers_with_leading_zeros_keep_their_spelling(volume: FolderBackend) -> None:
    name = CheckpointName(7, 0, "checkpoint-epoch-007")
    volume.store.put(name, save(volume.volume, name), volume.put(checkpoint_name(1, 0)).about)
    assert listed(volume)[0].path == "attempt-0/checkpoint-epoch-007"
