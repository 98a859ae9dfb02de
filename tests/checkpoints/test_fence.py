"""What a worker that was cut off saves never counts over what the attempts after it have saved."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.manifest import CheckpointName, SaveInfo, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import (
    CheckpointPosition,
    DecisionPending,
    Fence,
    ResumeDecision,
    decode,
    encode,
    read_decision,
    resume,
    write_decision,
)
from holdfast.checkpoints.retention import StoredCheckpoint, expired, stored_checkpoints
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.backends import BucketBackend, FolderBackend, StoreBackend
from tests.checkpoints.making import ABOUT, content, save
from tests.checkpoints.memory import MemoryBucket

JOB = ABOUT.job


@pytest.fixture(params=["folder", "objects"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBackend:
    return FolderBackend(tmp_path) if request.param == "folder" else BucketBackend(tmp_path, MemoryBucket())


def resumed(backend: StoreBackend, attempt: int) -> tuple[CheckpointName | None, list[str]]:
    notes: list[str] = []
    return resume(backend.store, backend.volume / f"attempt-{attempt}", attempt, ABOUT, notes.append), notes


def test_what_is_saved_after_the_next_attempt_began_is_left_out(backend: StoreBackend) -> None:
    backend.put(checkpoint_name(3, 0))
    write_decision(backend.store, 1, checkpoint_name(3, 0), JOB)
    backend.put(checkpoint_name(9, 0))
    backend.put(checkpoint_name(4, 1))
    got, (note,) = resumed(backend, 2)
    assert got == checkpoint_name(4, 1)
    assert note == ("checkpoint-epoch-9 of attempt 0 is left out: attempt 1 had begun further back when it was saved")
    assert backend.store.verify(checkpoint_name(9, 0)), "it stays where it is"


def test_what_was_there_before_counts_as_ever(both: StoreBackend) -> None:
    for name in (checkpoint_name(2, 0), checkpoint_name(3, 0)):
        both.put(name)
    write_decision(both.store, 1, checkpoint_name(3, 0), JOB)
    assert resumed(both, 2) == (checkpoint_name(3, 0), [])


def test_every_later_attempt_is_a_fence_and_attempts_may_be_missing(both: StoreBackend) -> None:
    for name in (checkpoint_name(5, 0), checkpoint_name(6, 1), checkpoint_name(7, 2), checkpoint_name(5, 4)):
        both.put(name)
    write_decision(both.store, 4, checkpoint_name(4, 0), JOB)
    write_decision(both.store, 2, checkpoint_name(6, 1), JOB)
    fence = Fence(both.store)
    assert both.store.decided_attempts() == [2, 4]
    names = (
        checkpoint_name(4, 0),
        checkpoint_name(5, 0),
        checkpoint_name(6, 1),
        checkpoint_name(7, 2),
        checkpoint_name(5, 4),
    )
    assert [fence.superseded_by(name, JOB) for name in names] == [None, 4, 4, 4, None]
    assert fence.superseded_by(checkpoint_name(7, 1), JOB) == 2


def test_after_an_attempt_that_began_anew_nothing_older_counts(both: StoreBackend) -> None:
    write_decision(both.store, 1, None, JOB)
    both.put(checkpoint_name(9, 0))
    both.put(checkpoint_name(1, 1))
    assert resumed(both, 2)[0] == checkpoint_name(1, 1)


def test_rather_than_begin_anew_what_was_left_out_is_taken(both: StoreBackend) -> None:
    write_decision(both.store, 1, None, JOB)
    both.put(checkpoint_name(8, 0))
    both.put(checkpoint_name(9, 0))
    both.remove(f"{checkpoint_name(9, 0).folder}/model.bin")
    assert resumed(both, 2)[0] == checkpoint_name(8, 0)


def test_a_worker_that_is_replaced_does_not_move_its_attempts_beginning(both: StoreBackend) -> None:
    both.put(checkpoint_name(3, 0))
    write_decision(both.store, 1, checkpoint_name(3, 0), JOB)
    both.put(checkpoint_name(5, 0))
    both.put(checkpoint_name(6, 1))
    write_decision(both.store, 1, checkpoint_name(6, 1), JOB)
    both.remove(f"{checkpoint_name(6, 1).folder}/model.bin")
    assert read_decision(both.store, 1, JOB) == checkpoint_name(6, 1)
    assert resumed(both, 2)[0] == checkpoint_name(3, 0)


def test_an_attempt_that_died_before_it_decided_begins_where_its_copy_is(tmp_path: Path) -> None:
    backend = FolderBackend(tmp_path)
    backend.put(checkpoint_name(3, 0))
    assert resumed(backend, 1)[0] == checkpoint_name(3, 0)
    got, _ = resumed(backend, 1)
    assert got == checkpoint_name(3, 1), "the copy"
    write_decision(backend.store, 1, got, JOB)
    backend.remove(f"{checkpoint_name(3, 1).folder}/model.bin")
    assert resumed(backend, 2)[0] == checkpoint_name(3, 0)


def test_the_notes_of_a_job_that_had_the_prefix_before_are_no_fence(both: StoreBackend) -> None:
    write_decision(both.store, 1, checkpoint_name(2, 0), "uid-of-another")
    both.put(checkpoint_name(5, 0))
    assert resumed(both, 1) == (checkpoint_name(5, 0), [])
    with pytest.raises(DecisionPending):
        read_decision(both.store, 1, JOB)
    assert expired(stored_checkpoints(both.store, 1), 1, 1) == []


def test_a_note_that_can_not_be_read_is_no_fence(both: StoreBackend) -> None:
    both.store.write_decision(1, b"resuming from checkpoint-epoch-3")
    both.put(checkpoint_name(5, 0))
    assert resumed(both, 2) == (checkpoint_name(5, 0), [])


def test_notes_are_read_only_when_they_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FolderBackend(tmp_path)
    for attempt in range(1, 20):
        write_decision(backend.store, attempt, checkpoint_name(attempt, attempt - 1), JOB)
    for epoch in range(19, 22):
        backend.put(checkpoint_name(epoch, 18))
    read: list[int] = []
    note = backend.store.read_decision

    def counted(attempt: int) -> bytes | None:
        read.append(attempt)
        return note(attempt)

    monkeypatch.setattr(backend.store, "read_decision", counted)
    assert [one.fenced for one in stored_checkpoints(backend.store, 19)] == [True, True, False]
    assert read == [19]


def test_only_files_of_the_right_name_are_notes(backend: StoreBackend) -> None:
    for key in ("attempt-01.decision", "attempt-1.decision.bak", "attempt-x.decision", "notes/attempt-2.decision"):
        backend.write(key, b"{}")
    backend.store.write_decision(10, b"{}")
    backend.store.write_decision(9, b"{}")
    assert backend.store.decided_attempts() == [9, 10]


MARKS = st.builds(CheckpointPosition, st.integers(), st.integers())


@given(
    st.text(max_size=5), st.one_of(st.none(), st.builds(checkpoint_name, st.integers(0, 9), st.integers(0, 9))), MARKS
)
def test_a_decision_is_read_as_it_was_written(job: str, name: CheckpointName | None, until: CheckpointPosition) -> None:
    assert decode(encode(ResumeDecision(job, name, until))) == ResumeDecision(job, name, until)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_not(written: bytes) -> None:
    assert decode(written) is None


def fenced(epoch: int, attempt: int) -> StoredCheckpoint:
    return StoredCheckpoint(checkpoint_name(epoch, attempt), valid=True, fenced=True)


def valid(epoch: int, attempt: int) -> StoredCheckpoint:
    return StoredCheckpoint(checkpoint_name(epoch, attempt), valid=True)


@pytest.mark.parametrize(
    ("there", "attempt", "going"),
    [
        pytest.param([valid(2, 0), fenced(8, 0), fenced(9, 0), valid(3, 1)], 1, [], id="they push nothing out"),
        pytest.param(
            [fenced(3, 0), valid(4, 1), valid(5, 1)], 1, [checkpoint_name(3, 0)], id="they go when they are too old"
        ),
        pytest.param([fenced(5, 0), valid(4, 1), valid(5, 1)], 1, [], id="and no sooner"),
        pytest.param(
            [valid(1, 0), valid(2, 0), *(fenced(epoch, 0) for epoch in (6, 7, 8))],
            0,
            [checkpoint_name(6, 0)],
            id="a worker that was cut off deletes its own, and not what others resume from",
        ),
        pytest.param([fenced(3, 0), valid(3, 1), valid(4, 2)], 2, [], id="they are not the copy that stays"),
    ],
)
def test_checkpoints_expire_by_attempt_and_number(
    there: list[StoredCheckpoint], attempt: int, going: list[CheckpointName]
) -> None:
    assert expired(there, 2, attempt) == going


class History:
    """A job's life, with workers of old attempts that never hear of their end.

    `line` is what the job's current history consists of: epoch by epoch, what was saved.
    """

    def __init__(self, folder: Path, kind: str, keep: int) -> None:
        self.folder = folder
        self.store: CheckpointStore = (
            VolumeStore(folder, workers=1) if kind == "folder" else ObjectStore(MemoryBucket())
        )
        self.keep = keep
        self.line: dict[int, bytes] = {}
        self.current = 0
        """The last attempt that has begun."""
        self.last = 0
        """The last that was tried."""
        self.epochs = {0: 0}
        """Where each attempt's training is."""

    def save(self, which: int) -> None:
        """By any attempt that has begun; the current one's are the job's history."""
        attempt = sorted(self.epochs)[which % len(self.epochs)]
        self.epochs[attempt] += 1
        name = checkpoint_name(self.epochs[attempt], attempt)
        written = f"{name.epoch} by {attempt}".encode()
        self.store.put(name, save(self.folder, name, {"model": written}), ABOUT)
        if attempt == self.current:
            self.line[name.epoch] = written

    def prune(self, which: int) -> None:
        attempt = sorted(self.epochs)[which % len(self.epochs)]
        for name in expired(stored_checkpoints(self.store, attempt), self.keep, attempt):
            self.store.delete(name)

    def begin(self, which: int) -> None:
        """Some die before they have decided. Without any history, what a lost worker has saved becomes it."""
        self.last += 1
        folder = self.folder / f"attempt-{self.last}"
        got = resume(self.store, folder, self.last, ABOUT, lambda _: None)
        newest = max(self.line, default=None)
        if newest is not None:
            assert got is not None, f"nothing was resumed from, and there is epoch {newest}"
            assert got.epoch == newest
            assert content(folder / got.folder_name) == {"model": self.line[newest]}
        if which % 3 or newest is None:
            write_decision(self.store, self.last, got, JOB)
            self.current = self.last
            self.epochs[self.current] = got.epoch if got else 0
            if got and newest is None:
                self.line[got.epoch] = content(folder / got.folder_name)["model"]


STEPS = st.tuples(st.sampled_from(["save", "save", "save", "prune", "begin"]), st.integers(0, 5))


@pytest.mark.parametrize("kind", ["folder", "objects"])
@settings(max_examples=300, deadline=None)
@given(steps=st.lists(STEPS, max_size=25), keep=st.integers(1, 3))
def test_whatever_happens_an_attempt_goes_on_from_the_newest_of_its_own_history(
    kind: str, steps: list[tuple[str, int]], keep: int
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        history = History(folder, kind, keep)
        for step, which in [*steps, ("begin", 1)]:
            getattr(history, step)(which)
    finally:
        shutil.rmtree(folder)


def test_checkpoints_of_a_job_that_had_the_prefix_before_are_no_ones_fence(tmp_path: Path) -> None:
    """Its checkpoints count for the new job, as they always have, whatever the new job's notes say of its own."""
    backend = FolderBackend(tmp_path)
    old = SaveInfo(job="uid-of-another", saved_at=ABOUT.saved_at)
    backend.store.put(checkpoint_name(7, 0), save(backend.volume, checkpoint_name(7, 0)), old)
    write_decision(backend.store, 1, checkpoint_name(3, 0), JOB)
    assert [one.is_resumable for one in stored_checkpoints(backend.store, 1)] == [True]
