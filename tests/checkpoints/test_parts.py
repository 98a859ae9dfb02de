"""Checkpoints that several workers write, each on a volume of its own, into one object store."""

import json
import threading
from pathlib import Path

import pytest

from holdfast.checkpoints import object_store
from holdfast.checkpoints.completeness import MARKER
from holdfast.checkpoints.errors import Incomplete
from holdfast.checkpoints.files import list_files
from holdfast.checkpoints.manifest import SaveInfo, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from tests.checkpoints.making import content, save
from tests.checkpoints.memory import MemoryBucket

NAME = checkpoint_name(3, 1)
ABOUT = SaveInfo(job="uid", saved_at="2026-01-02T03:04:05Z", world=3)


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def store(bucket: MemoryBucket) -> ObjectStore:
    return ObjectStore(bucket)


def worker(folder: Path, rank: int, **files: bytes) -> Path:
    return save(folder / f"worker-{rank}", NAME, files)


def test_declared_parts_are_joined(store: ObjectStore, tmp_path: Path) -> None:
    store.put_shard(NAME, worker(tmp_path, 2, c=b"2"), 2, ABOUT)
    store.put_shard(NAME, worker(tmp_path, 1, b=b"1"), 1, ABOUT)
    assert store.manifest(NAME) is None
    store.put(NAME, worker(tmp_path, 0, a=b"0"), ABOUT, ranks=[1, 2])
    store.get(NAME, tmp_path / "got")
    assert content(tmp_path / "got") == {"a": b"0", "b": b"1", "c": b"2"}


def test_a_declared_part_that_is_missing_is_waited_for(store: ObjectStore, tmp_path: Path) -> None:
    own = worker(tmp_path, 0, a=b"0")
    store.put_shard(NAME, worker(tmp_path, 1, b=b"1"), 1, ABOUT)
    with pytest.raises(Incomplete, match="lacks the part of worker 2: it is waited for"):
        store.put(NAME, own, ABOUT, ranks=[1, 2])
    assert store.manifest(NAME) is None
    store.put_shard(NAME, worker(tmp_path, 2, c=b"2"), 2, ABOUT)
    assert [file.path for file in store.put(NAME, own, ABOUT, ranks=[1, 2]).files] == ["a", "b", "c"]


def test_without_a_declaration_those_that_are_there_count(store: ObjectStore, tmp_path: Path) -> None:
    own = worker(tmp_path, 0, a=b"0")
    assert len(store.put(NAME, own, ABOUT).files) == 1
    store.put_shard(NAME, worker(tmp_path, 2, c=b"2"), 2, ABOUT)
    assert len(store.put(NAME, own, ABOUT).files) == 2


def test_workers_that_all_save_the_same_name_do_not_overwrite_each_other(store: ObjectStore, tmp_path: Path) -> None:
    for rank in (1, 2):
        store.put_shard(NAME, worker(tmp_path, rank, model=bytes([rank])), rank, ABOUT)
    store.put(NAME, worker(tmp_path, 0, model=b"first"), ABOUT)
    store.put_shard(NAME, worker(tmp_path, 1, model=b"later"), 1, ABOUT)
    store.get(NAME, tmp_path / "got")
    assert content(tmp_path / "got") == {"model": b"first"}


def test_a_part_that_is_saved_anew_does_not_break_what_was_joined(store: ObjectStore, tmp_path: Path) -> None:
    own = worker(tmp_path, 0, a=b"0")
    store.put_shard(NAME, worker(tmp_path, 1, b=b"old"), 1, ABOUT)
    store.put(NAME, own, ABOUT, ranks=[1])
    store.put_shard(NAME, worker(tmp_path, 1, b=b"new"), 1, ABOUT)
    store.get(NAME, tmp_path / "before")
    assert content(tmp_path / "before") == {"a": b"0", "b": b"old"}
    store.put(NAME, own, ABOUT, ranks=[1])
    store.get(NAME, tmp_path / "after")
    assert content(tmp_path / "after") == {"a": b"0", "b": b"new"}


def test_nothing_of_the_parts_is_left_when_it_is_deleted(
    store: ObjectStore, bucket: MemoryBucket, tmp_path: Path
) -> None:
    store.put_shard(NAME, worker(tmp_path, 1, b=b"1"), 1, ABOUT)
    store.put(NAME, worker(tmp_path, 0, a=b"0"), ABOUT)
    store.delete(NAME)
    assert bucket.stored == {}


def test_what_is_there_is_not_sent_again(store: ObjectStore, bucket: MemoryBucket, tmp_path: Path) -> None:
    own = worker(tmp_path, 0, a=b"0", b=b"1")
    store.put(NAME, own, ABOUT)
    bucket.puts.clear()
    (own / "b").write_bytes(b"2")
    store.put(NAME, own, ABOUT)
    sent = [key.rsplit("/", 1)[-1] for key in bucket.puts]
    assert sent == ["b", ".holdfast-manifest.json"], "the manifest last"


def test_an_object_of_the_right_size_and_another_digest_is_sent_again(
    store: ObjectStore, bucket: MemoryBucket, tmp_path: Path
) -> None:
    bucket.put(f"{NAME.folder}/a", b"X")
    store.put(NAME, worker(tmp_path, 0, a=b"0"), ABOUT)
    store.verify(NAME)


def test_no_object_that_a_manifest_speaks_of_is_overwritten(
    store: ObjectStore, bucket: MemoryBucket, tmp_path: Path
) -> None:
    own = worker(tmp_path, 0, a=b"0", b=b"1")
    for round_ in range(4):
        manifest = store.put(NAME, own, ABOUT)
        kept = {f"{NAME.folder}/{file.key}" for file in manifest.files}
        bucket.puts.clear()
        (own / "a").write_bytes(bytes([round_]))
        store.put(NAME, own, ABOUT)
        assert not kept & set(bucket.puts)
        assert len(bucket.stored) == 3, "two files and the manifest"


def test_a_folder_that_changes_while_it_is_sent_gets_no_manifest(
    store: ObjectStore, bucket: MemoryBucket, tmp_path: Path
) -> None:
    own = worker(tmp_path, 0, a=b"0", b=b"1")

    def write_meanwhile() -> None:
        (own / "a").write_bytes(b"written meanwhile")

    bucket.before = write_meanwhile
    with pytest.raises(Incomplete, match="was written to while it was read"):
        store.put(NAME, own, ABOUT)
    assert store.manifest(NAME) is None


def test_of_a_checkpoint_of_many_files_one_large_one_is_sent_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(MemoryBucket):
        under_way, most = 0, 0

        def put_file(self, key: str, file: Path, size: int, sha256: str, *, parts_at_once: int) -> None:
            with lock:
                self.under_way += size > 1
                self.most = max(self.most, self.under_way)
            super().put_file(key, file, size, sha256, parts_at_once=parts_at_once)
            with lock:
                self.under_way -= size > 1

    lock, counting = threading.Lock(), Counting()
    monkeypatch.setattr(object_store, "MANY_FILES", 3)
    monkeypatch.setattr(object_store, "LARGE_BYTES", 1)
    files = {f"large-{number}": b"12" for number in range(30)} | {"small": b"1"}
    ObjectStore(counting).put(NAME, worker(tmp_path, 0, **files), ABOUT)
    assert counting.most == 1
    assert len(counting.stored) == 32


def shard(folder: Path, rank: int, step: int, **files: bytes) -> Path:
    said = {"shards": 2, "ranks": [rank], "attempt": 1, "restart": 0, "epoch": 3, "step": step}
    own = worker(folder, rank, **files)
    (own / f"{MARKER}-{rank}").write_text(json.dumps(said))
    return own


def test_parts_of_two_saves_are_never_joined(store: ObjectStore, tmp_path: Path) -> None:
    store.put_shard(NAME, shard(tmp_path / "5", 1, 5, b=b"5"), 1, ABOUT)
    assert store.put(NAME, shard(tmp_path / "5", 0, 5, a=b"5"), ABOUT, ranks=[1]).step == 5
    with pytest.raises(Incomplete, match="lacks the part of worker 1"):
        store.put(NAME, shard(tmp_path / "9", 0, 9, a=b"9"), ABOUT, ranks=[1])
    store.get(NAME, tmp_path / "got")
    assert content(tmp_path / "got") == {"a": b"5", "b": b"5"}
    store.put_shard(NAME, shard(tmp_path / "9", 1, 9, b=b"9"), 1, ABOUT)
    assert store.put(NAME, tmp_path / "9" / "worker-0" / NAME.folder, ABOUT, ranks=[1]).step == 9
    store.get(NAME, tmp_path / "got")
    assert content(tmp_path / "got") == {"a": b"9", "b": b"9"}


def test_parts_of_a_save_that_nobody_ends_any_more_are_forgotten(store: ObjectStore, tmp_path: Path) -> None:
    store.put_shard(NAME, shard(tmp_path, 1, 5, b=b"5"), 1, ABOUT)
    store.forget_parts(NAME.attempt - 1)
    store.forget_parts(NAME.attempt)
    with pytest.raises(Incomplete, match="lacks the part of worker 1"):
        store.put(NAME, shard(tmp_path, 0, 5, a=b"5"), ABOUT, ranks=[1])


def test_what_was_saved_anew_since_it_was_found_complete_is_not_sent(store: ObjectStore, tmp_path: Path) -> None:
    own = shard(tmp_path, 1, 5, b=b"5")
    with pytest.raises(Incomplete, match="saved anew meanwhile"):
        store.put_shard(NAME, own, 1, ABOUT, list_files(tmp_path / "worker-1"))
