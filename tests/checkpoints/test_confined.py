"""Whatever names, manifests and links say, nothing outside the job's own prefix is touched."""

import json
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints import files as disk
from holdfast.checkpoints.completeness import HEARTBEAT_FILE, CheckpointWatcher, FolderScan
from holdfast.checkpoints.errors import CheckpointError
from holdfast.checkpoints.fetch import fetch, find
from holdfast.checkpoints.manifest import MANIFEST, CheckpointName, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import read_decision, resume, write_decision
from holdfast.checkpoints.retention import expired, stored_checkpoints
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar.background import TensorboardSync
from holdfast.sidecar.persister import write_notice
from holdfast.sidecar.storage import UPLOADED, ObjectStoreUpload
from tests.checkpoints.backends import fresh_prefix
from tests.checkpoints.making import ABOUT, fill, save
from tests.checkpoints.memory import MemoryBucket, Stored
from tests.checkpoints.racing import CREATED, DELETED, LISTED, attack
from tests.checkpoints.servers.server import Server

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
PARTS = st.sampled_from(
    ["..", ".", "", "a", "attempt-0", "attempt-1", "checkpoint-epoch-1", "quarantine", "victim", "\x00", ".holdfast-x"]
)
PATHS = st.lists(PARTS, min_size=1, max_size=6).map("/".join)
LEAVES = st.one_of(PATHS, st.just("checkpoint-epoch-1"))


def manifest(epoch: int, attempt: int, paths: list[str], kept_at: str) -> bytes:
    files = [{"path": path, "size": 0, "sha256": EMPTY, "keptAt": kept_at} for path in paths]
    facts = {"version": 1, "epoch": epoch, "attempt": attempt, "job": "u", "savedAt": "", "world": 1, "files": files}
    return json.dumps(facts).encode()


def use(store: CheckpointStore, name: CheckpointName, target: Path) -> None:
    """Everything that anybody does with a store."""
    for work in (
        lambda: store.manifest(name),
        lambda: store.verify(name),
        lambda: store.get(name, target),
        lambda: store.put(name, target.parent / "source", ABOUT),
        lambda: resume(store, target.parent / "attempt-3", 3, ABOUT, lambda _: None),
        lambda: prune(store),
        lambda: read_decision(store, 3, ABOUT.job),
        lambda: write_decision(store, 4, name, ABOUT.job),
        lambda: store.quarantine(name),
        lambda: store.delete(name),
    ):
        with suppress(CheckpointError):
            work()


def prune(store: CheckpointStore) -> None:
    for name in expired(stored_checkpoints(store, 3), 1, 3):
        store.delete(name)


def snapshot(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else "folder" for path in folder.rglob("*")
    }


@settings(max_examples=400, deadline=None)
@given(
    leaf=LEAVES,
    paths=st.lists(PATHS, max_size=3),
    kept_at=st.one_of(st.just(""), PATHS),
    links=st.dictionaries(PARTS.filter(lambda part: part.isprintable() and part.strip(".")), PATHS, max_size=3),
    note=st.one_of(
        st.binary(max_size=20),
        PATHS.map(
            lambda path: json.dumps({"job": ABOUT.job, "until": [0, 0], "attempt": 0, "checkpoint": path}).encode()
        ),
    ),
)
def test_no_path_and_no_link_leads_out_of_the_folder_of_a_volume(
    leaf: str, paths: list[str], kept_at: str, links: dict[str, str], note: bytes
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        root, outside = folder / "jobs" / "mine", folder / "jobs" / "victim"
        fill(outside, {"attempt-0/checkpoint-epoch-1/model.bin": b"precious", "victim": b"precious"})
        fill(folder, {"victim": b"precious", "attempt-0/checkpoint-epoch-1/a": b"precious"})
        before = snapshot(folder)
        checkpoint = root / "attempt-0" / "checkpoint-epoch-1"
        fill(checkpoint, {MANIFEST: manifest(1, 0, paths, kept_at), "a": b""})
        fill(root, {"attempt-3.decision": note})
        for link, target in links.items():
            for backend in (checkpoint, root / "attempt-0", root):
                with suppress(OSError, ValueError):
                    (backend / link).symlink_to(f"../../{target}")
        use(VolumeStore(root, workers=1), CheckpointName(1, 0, leaf), root / "attempt-2" / "target")
        shutil.rmtree(root)
        assert snapshot(folder) == before
    finally:
        shutil.rmtree(folder)


@settings(max_examples=400, deadline=None)
@given(
    leaf=LEAVES, paths=st.lists(PATHS, max_size=3), kept_at=st.one_of(st.just(""), PATHS), note=st.binary(max_size=9)
)
def test_in_a_bucket_and_on_the_volume_beside_it(leaf: str, paths: list[str], kept_at: str, note: bytes) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        fill(folder, {"victim": b"precious", "jobs/victim": b"precious"})
        before = snapshot(folder)
        root = folder / "jobs" / "mine"
        fill(root / "attempt-2" / "source", {"a": b"1"})
        bucket = MemoryBucket()
        bucket.stored["attempt-0/checkpoint-epoch-1/.holdfast-manifest.json"] = Stored(
            manifest(1, 0, paths, kept_at), None
        )
        bucket.stored["attempt-3.decision"] = Stored(note, None)
        use(ObjectStore(bucket, workers=1), CheckpointName(1, 0, leaf), root / "attempt-2" / "target")
        shutil.rmtree(root)
        assert snapshot(folder) == before
        for key in bucket.stored:
            assert key.startswith(("attempt-", "quarantine/"))
            assert not {"..", ".", ""} & set(key.split("/"))
    finally:
        shutil.rmtree(folder)


def test_jobs_with_similar_prefixes_do_not_see_each_other(server: Server, tmp_path: Path) -> None:
    prefix = fresh_prefix()
    mine, other = (ObjectStore(open_bucket(server.address(where), server.environ)) for where in (prefix, f"{prefix}-2"))
    name = CheckpointName(1, 0, "checkpoint-epoch-1")
    fill(tmp_path / "a", {"model.bin": b"mine"})
    fill(tmp_path / "b", {"model.bin": b"other"})
    mine.put(name, tmp_path / "a", ABOUT)
    other.put(name, tmp_path / "b", ABOUT)
    mine.quarantine(name)
    assert mine.names(9) == []
    mine.delete(name)
    assert other.verify(name).size == 5


# The sidecar needs some milliseconds for the files before the one that the attacker is after, and for as many after it.
SECRET, MANY = b"the key of the store", {f"state/{number:04}": b"mine" for number in range(400)}
LARGE = {"large": bytes(32 << 20), "state/key": b"the training's own"}


def secrets(tmp_path: Path, files: Iterable[str]) -> Path:
    """A folder that only the sidecar may read and write, with files of the same names."""
    fill(tmp_path / "secrets", {Path(path).name: SECRET for path in files})
    return tmp_path / "secrets"


def test_a_folder_that_is_replaced_after_it_was_listed_is_not_uploaded_from(tmp_path: Path) -> None:
    folder, bucket = save(tmp_path / "volume", checkpoint_name(1, 0), LARGE), MemoryBucket()
    with attack(folder / "state", secrets(tmp_path, LARGE), LISTED), pytest.raises(CheckpointError):
        ObjectStore(bucket, workers=1).put(checkpoint_name(1, 0), folder, ABOUT)
    assert SECRET not in {stored.content for stored in bucket.stored.values()}


def test_a_folder_above_the_checkpoint_that_is_replaced_changes_nothing(tmp_path: Path) -> None:
    folder, bucket = save(tmp_path / "volume", checkpoint_name(1, 0), LARGE), MemoryBucket()
    fill(tmp_path / "secrets", {f"{folder.name}/state/key": SECRET, f"{folder.name}/large": b""})
    with attack(folder.parent, tmp_path / "secrets", LISTED), suppress(CheckpointError, OSError):
        CheckpointWatcher(folder.parent).scan(0.0)
        ObjectStore(bucket, workers=1).put(checkpoint_name(1, 0), folder, ABOUT)
    assert SECRET not in {stored.content for stored in bucket.stored.values()}


def test_a_folder_that_is_replaced_after_it_was_listed_is_not_mirrored(tmp_path: Path) -> None:
    fill(tmp_path / "tensorboard", LARGE)
    bucket = MemoryBucket()
    with attack(tmp_path / "tensorboard" / "state", secrets(tmp_path, LARGE), LISTED):
        TensorboardSync(tmp_path / "tensorboard", bucket).upload_new()
    assert SECRET not in {stored.content for stored in bucket.stored.values()}


def test_a_folder_that_is_replaced_after_it_was_listed_is_not_resumed_from(tmp_path: Path) -> None:
    source, target = tmp_path / "pretrained", tmp_path / "attempt-0" / "checkpoint-epoch-0"
    fill(source, {**LARGE, "state/key": bytes(len(SECRET))})
    with attack(source / "state", secrets(tmp_path, LARGE), LISTED), pytest.raises(CheckpointError):
        fetch(find(str(source), {}), target, checkpoint_name(0, 0), ABOUT)
    assert not target.exists()


def test_a_folder_that_is_replaced_while_it_is_deleted_saves_what_the_link_leads_to(tmp_path: Path) -> None:
    store, victim = VolumeStore(tmp_path / "volume"), secrets(tmp_path, MANY)
    trash = store.root / "attempt-0" / f"{disk.DELETED}checkpoint-epoch-1"
    fill(trash, MANY)
    with attack(trash / "state", victim, DELETED), suppress(CheckpointError):
        store.remove_interrupted(0)
    assert len(list(victim.iterdir())) == len(MANY)


def test_a_folder_that_is_replaced_while_a_checkpoint_is_restored_is_not_written_through(tmp_path: Path) -> None:
    store, victim = VolumeStore(tmp_path / "volume", workers=1), secrets(tmp_path, MANY)
    store.put(checkpoint_name(1, 0), save(store.root, checkpoint_name(1, 0), MANY), ABOUT)
    begun = store.root / "attempt-1" / f"{disk.RESTORING}checkpoint-epoch-1" / "state"
    begun.mkdir(parents=True)
    with attack(begun, victim, CREATED), pytest.raises(CheckpointError):
        store.get(checkpoint_name(1, 0), store.root / "attempt-1" / "checkpoint-epoch-1")
    assert {path.read_bytes() for path in victim.iterdir()} == {SECRET}


def test_the_sidecars_own_files_are_not_written_through_a_link(tmp_path: Path) -> None:
    root, notice = tmp_path / "volume", tmp_path / "run" / "notice"
    folder = save(root, checkpoint_name(1, 0))
    for link in (root / "attempt-0" / HEARTBEAT_FILE, folder / UPLOADED, notice.with_name(".notice.partial")):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(tmp_path / "victim")
    CheckpointWatcher(folder.parent).scan(0.0)
    mirror = ObjectStoreUpload(folder.parent, ObjectStore(MemoryBucket()), 0, index=0, workers=1)
    with suppress(CheckpointError):
        mirror.persist(FolderScan(checkpoint_name(1, 0), True, "", ()), ABOUT, {})
    write_notice(notice, "the pod is about to end")
    assert not (tmp_path / "victim").exists()
    assert notice.read_text() == "the pod is about to end\n"
