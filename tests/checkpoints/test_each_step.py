"""Deletion, quarantine and replacement, ended at each of their steps in turn."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from holdfast.checkpoints.errors import CheckpointNotFound
from holdfast.checkpoints.manifest import MANIFEST, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.backends import BucketBackend, FolderBackend, StoreBackend
from tests.checkpoints.crashing import DyingOs, Fuse, dies, dying_os
from tests.checkpoints.making import MODEL, content, save
from tests.checkpoints.memory import MemoryBucket

NAME = checkpoint_name(3, 0)


@pytest.fixture
def dying() -> Iterator[DyingOs]:
    with dying_os() as dying:
        yield dying


def fresh(kind: str, folder: Path) -> StoreBackend:
    folder.mkdir()
    if kind == "folder":
        backend: StoreBackend = FolderBackend(folder)
        backend.store = VolumeStore(backend.volume, workers=1)
    else:
        backend = BucketBackend(folder, MemoryBucket())
        backend.store = ObjectStore(backend.bucket, workers=1)
    backend.put(NAME)
    return backend


def interrupted(
    kind: str, tmp_path: Path, dying: DyingOs, work: Callable[[StoreBackend], object]
) -> Iterator[StoreBackend]:
    """The backend after each step of the work at which it can end; the last one is whole."""
    for step, seed in ((step, seed) for step in itertools.count() for seed in (0, 1)):
        backend = fresh(kind, tmp_path / f"{step}-{seed}")
        bucket = backend.bucket if isinstance(backend, BucketBackend) else None
        assert bucket is None or isinstance(bucket, MemoryBucket)
        died = dies(Fuse(step, Random(seed)), dying, bucket, partial(work, backend))
        yield backend
        if not died:
            return


def is_whole(store: CheckpointStore) -> bool:
    try:
        store.verify(NAME)
    except CheckpointNotFound:
        return False
    return True


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_a_deletion_leaves_the_whole_or_no_checkpoint(kind: str, tmp_path: Path, dying: DyingOs) -> None:
    seen = []
    for backend in interrupted(kind, tmp_path, dying, lambda backend: backend.store.delete(NAME)):
        seen.append(is_whole(backend.store))
        if kind == "folder" and not seen[-1]:
            assert backend.store.names(9) == [], "a folder without its manifest might be taken for a new one"
        backend.store.delete(NAME)
        assert not is_whole(backend.store)
    assert seen[0]
    assert not seen[-1]
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_a_quarantine_loses_no_file(kind: str, tmp_path: Path, dying: DyingOs) -> None:
    for backend in interrupted(kind, tmp_path, dying, lambda backend: backend.store.quarantine(NAME)):
        places = (NAME.folder, NAME.quarantined)
        assert any({f"{where}/{path}" for path in (*MODEL, MANIFEST)} <= backend.all_keys() for where in places)
        if is_whole(backend.store):
            backend.store.quarantine(NAME)
        assert backend.store.names(9) in ([], [NAME]) if kind == "objects" else backend.store.names(9) == []


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_a_restore_leaves_the_old_the_new_or_nothing_in_its_place(kind: str, tmp_path: Path, dying: DyingOs) -> None:
    for backend in interrupted(kind, tmp_path, dying, restore_over):
        target = backend.volume / "attempt-1" / NAME.folder_name
        assert not target.exists() or content(target) in ({"old": b"old"}, MODEL)
        backend.store.get(NAME, target)
        assert content(target) == MODEL
        assert [path.name for path in target.parent.iterdir() if path.name.startswith(".holdfast-restoring")] == []


def restore_over(backend: StoreBackend) -> None:
    target = save(backend.volume, checkpoint_name(3, 1), {"old": b"old"})
    backend.store.get(NAME, target)
