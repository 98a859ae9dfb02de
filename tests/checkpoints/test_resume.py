"""What an attempt goes on from."""

from pathlib import Path

import pytest

from holdfast.checkpoints.completeness import MARKER
from holdfast.checkpoints.errors import InvalidCheckpointManifest, StoreError, StoreUnreachable, UnsafeContent
from holdfast.checkpoints.manifest import MANIFEST, CheckpointManifest, CheckpointName, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import MAX_ATTEMPTS, DecisionPending, read_decision, resume, write_decision
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.backends import BucketBackend, FolderBackend, StoreBackend
from tests.checkpoints.making import ABOUT, MODEL, content, save, save_by_rename
from tests.checkpoints.memory import MemoryBucket

JOB = ABOUT.job


@pytest.fixture(params=["folder", "objects"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBackend:
    """The two kinds of stores; how each of the servers behaves is tested elsewhere."""
    return FolderBackend(tmp_path) if request.param == "folder" else BucketBackend(tmp_path, MemoryBucket())


def resumed(store: CheckpointStore, folder: Path, attempt: int) -> tuple[CheckpointName | None, list[str]]:
    notes: list[str] = []
    return resume(store, folder, attempt, ABOUT, notes.append), notes


def spoil(backend: StoreBackend, name: CheckpointName) -> None:
    manifest = backend.store.manifest(name)
    assert manifest is not None
    for file in manifest.files:
        backend.write(f"{name.folder}/{file.key}", b"spoilt")


def test_a_first_attempt_begins_anew(both: StoreBackend, tmp_path: Path) -> None:
    assert resumed(both.store, tmp_path / "attempt-0", 0) == (None, [])


def test_the_newest_is_put_into_the_attempts_folder(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0), {"model.bin": b"3"})
    both.put(checkpoint_name(5, 0), {"model.bin": b"5"})
    both.put(checkpoint_name(4, 1), {"model.bin": b"4"})
    folder = both.volume / "attempt-2"
    assert resumed(both.store, folder, 2) == (checkpoint_name(5, 0), [])
    assert content(folder) == {"checkpoint-epoch-5/model.bin": b"5"}


def test_a_second_start_of_an_attempt_takes_the_same(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0))
    folder = both.volume / "attempt-1"
    for _ in range(2):
        got, notes = resumed(both.store, folder, 1)
        assert got is not None
        assert (got.epoch, notes) == (3, [])
        assert content(folder / got.folder_name) == MODEL


def test_what_a_newer_attempt_wrote_is_not_taken(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0))
    both.put(checkpoint_name(9, 5))
    assert resumed(both.store, both.volume / "attempt-1", 1)[0] == checkpoint_name(3, 0)


def test_the_one_before_a_damaged_one_is_taken(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0), {"model.bin": b"3"})
    both.put(checkpoint_name(4, 0), {"model.bin": b"4"})
    both.write(f"{checkpoint_name(4, 0).folder}/model.bin", b"x")
    got, (note,) = resumed(both.store, both.volume / "attempt-1", 1)
    assert got == checkpoint_name(3, 0)
    assert "checkpoint-epoch-4 of attempt 0 is damaged and was set aside as " in note
    assert "quarantine/attempt-0-checkpoint-epoch-4: the content of model.bin is not what was saved" in note
    assert both.read("quarantine/attempt-0-checkpoint-epoch-4/model.bin") == b"x"


def test_with_all_of_them_damaged_it_begins_anew(both: StoreBackend) -> None:
    for epoch in (1, 2, 3):
        both.put(checkpoint_name(epoch, 0))
        both.remove(f"{checkpoint_name(epoch, 0).folder}/model.bin")
    got, notes = resumed(both.store, both.volume / "attempt-1", 1)
    assert got is None
    assert len(notes) == 3


def test_one_without_a_manifest_is_left_where_it_is(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0))
    both.write(f"{checkpoint_name(4, 0).folder}/model.bin", b"half")
    got, (note,) = resumed(both.store, both.volume / "attempt-1", 1)
    assert got == checkpoint_name(3, 0)
    assert note == "checkpoint-epoch-4 of attempt 0 is left out: it was never complete"
    assert both.read(f"{checkpoint_name(4, 0).folder}/model.bin") == b"half"


def test_one_of_a_newer_holdfast_is_left_where_it_is(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0))
    both.put(checkpoint_name(4, 0))
    both.write(f"{checkpoint_name(4, 0).folder}/{MANIFEST}", b'{"version": 2}')
    got, (note,) = resumed(both.store, both.volume / "attempt-1", 1)
    assert got == checkpoint_name(3, 0)
    assert "use a newer holdfast" in note
    with pytest.raises(InvalidCheckpointManifest):
        both.store.manifest(checkpoint_name(4, 0))


def test_a_store_that_can_not_be_written_to_is_no_reason_to_begin_anew(
    both: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.put(checkpoint_name(3, 0))
    both.put(checkpoint_name(4, 0))
    both.remove(f"{checkpoint_name(4, 0).folder}/model.bin")

    def refuse(name: CheckpointName) -> str:
        raise StoreError("the bucket is read-only")

    monkeypatch.setattr(both.store, "quarantine", refuse)
    got, (note,) = resumed(both.store, both.volume / "attempt-1", 1)
    assert got == checkpoint_name(3, 0)
    assert "could not be set aside: the bucket is read-only" in note


def test_a_fault_of_the_store_is_raised_and_nothing_older_taken(
    both: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.put(checkpoint_name(3, 0))
    both.put(checkpoint_name(4, 0))
    get = both.store.get

    def fail(name: CheckpointName, target: Path) -> CheckpointManifest:
        if name.epoch == 4:
            raise StoreUnreachable("no answer")
        return get(name, target)

    monkeypatch.setattr(both.store, "get", fail)
    with pytest.raises(StoreUnreachable):
        resumed(both.store, both.volume / "attempt-1", 1)


def test_one_that_is_replaced_while_it_is_read_is_read_again(
    both: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.put(checkpoint_name(4, 0), {"model.bin": b"old"})
    get = both.store.get
    calls: list[CheckpointName] = []

    def replaced(name: CheckpointName, target: Path) -> CheckpointManifest:
        calls.append(name)
        if len(calls) == 1:
            spoil(both, name)
            try:
                return get(name, target)
            finally:
                both.put(checkpoint_name(4, 0), {"model.bin": b"new"})
        return get(name, target)

    monkeypatch.setattr(both.store, "get", replaced)
    got, notes = resumed(both.store, both.volume / "attempt-1", 1)
    assert (got, notes) == (checkpoint_name(4, 0), [])
    assert content(both.volume / "attempt-1" / "checkpoint-epoch-4") == {"model.bin": b"new"}
    assert len(calls) == 2


def test_one_that_is_replaced_for_ever_is_left_out(both: StoreBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    both.put(checkpoint_name(3, 0))
    both.put(checkpoint_name(4, 0))
    get, tries = both.store.get, 0

    def replaced(name: CheckpointName, target: Path) -> CheckpointManifest:
        nonlocal tries
        if name.epoch == 4:
            tries += 1
            spoil(both, name)
            try:
                return get(name, target)
            finally:
                both.put(name, {"model.bin": bytes([tries])})
        return get(name, target)

    monkeypatch.setattr(both.store, "get", replaced)
    assert resumed(both.store, both.volume / "attempt-1", 1)[0] == checkpoint_name(3, 0)
    assert tries == MAX_ATTEMPTS


def test_one_that_nobody_digested_is_taken_if_it_is_complete(tmp_path: Path) -> None:
    store = VolumeStore(tmp_path)
    save(tmp_path, checkpoint_name(1, 0))
    renamed = save_by_rename(tmp_path, checkpoint_name(2, 0))
    (save(tmp_path, checkpoint_name(3, 0)) / MARKER).write_text('{"shards": 2, "ranks": [0]}')
    got, notes = resumed(store, tmp_path / "attempt-1", 1)
    assert got == checkpoint_name(2, 0)
    assert notes == ["checkpoint-epoch-3 of attempt 0 is left out: it was never complete"]
    assert store.verify(checkpoint_name(2, 0)).attempt == 0
    assert content(renamed) == content(tmp_path / "attempt-1" / "checkpoint-epoch-2") == MODEL


def test_a_copy_shares_no_file_with_its_original(tmp_path: Path) -> None:
    backend = FolderBackend(tmp_path)
    backend.put(checkpoint_name(1, 0))
    resumed(backend.store, backend.volume / "attempt-1", 1)
    backend.write(f"{checkpoint_name(1, 0).folder}/model.bin", b"written by a worker that was cut off")
    assert backend.store.verify(checkpoint_name(1, 1)).epoch == 1


def test_all_workers_of_an_attempt_take_what_the_first_one_decided(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0))
    with pytest.raises(DecisionPending, match="worker 0 has not written"):
        read_decision(both.store, 1, JOB)
    write_decision(both.store, 1, checkpoint_name(3, 0), JOB)
    both.put(checkpoint_name(4, 0))
    assert read_decision(both.store, 1, JOB) == checkpoint_name(3, 0)
    write_decision(both.store, 2, None, JOB)
    assert read_decision(both.store, 2, JOB) is None


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[]",
        b"resuming from checkpoint-epoch-3",
        b"[" * 60_000,
        b'{"attempt": 0, "checkpoint": "checkpoint-epoch-3"}',
        b'{"job": "uid-1", "until": [3, 0], "attempt": 9, "checkpoint": "checkpoint-epoch-3"}',
        b'{"job": "uid-1", "until": [3, 0], "attempt": 0, "checkpoint": "../../x"}',
        b'{"job": "uid-1", "until": [3, 0], "attempt": "x", "checkpoint": "checkpoint-epoch-3"}',
        b'{"job": "uid-1", "until": [3, 0], "checkpoint": "checkpoint-epoch-3"}',
        b'{"job": "uid-1", "until": [3, true], "nothing": true}',
        b'{"job": "uid-1", "until": 3, "nothing": true}',
        b'{"job": 1, "until": [3, 0], "nothing": true}',
    ],
)
def test_a_decision_that_can_not_be_read_is_refused(both: StoreBackend, written: bytes) -> None:
    both.store.write_decision(1, written)
    with pytest.raises(UnsafeContent, match="can't be read: remove it"):
        read_decision(both.store, 1, JOB)


def test_an_object_store_never_guesses_that_an_upload_was_whole(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    store = ObjectStore(bucket)
    bucket.put(f"{checkpoint_name(1, 0).folder}/{MARKER}", b'{"shards": 1, "ranks": [0]}')
    bucket.put(f"{checkpoint_name(1, 0).folder}/model.bin", b"half")
    assert resumed(store, tmp_path / "attempt-1", 1)[0] is None
