"""Death at any operation of a save, a digest, an upload, a retention or a restore, again and again.

A resume never starts from an incomplete or damaged checkpoint, and never loses a complete one.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.completeness import MARKER, CheckpointWatcher
from holdfast.checkpoints.manifest import MANIFEST, CheckpointName, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import resume, write_decision
from holdfast.checkpoints.retention import expired, stored_checkpoints
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.crashing import DyingOs, Fuse, dies, dying_os
from tests.checkpoints.making import ABOUT, await_tick, content, fill
from tests.checkpoints.memory import MemoryBucket

Files = dict[str, bytes]

CASES = 1000
# Most operations of the scenarios have fewer steps than this; None is a run without a death.
FUSES = st.one_of(st.none(), st.integers(0, 40))
SAVES = st.tuples(st.just("save"), st.sampled_from(["rename", "marker", "plain"]), FUSES, st.booleans())
SEALS = st.tuples(st.just("seal"), st.just(""), FUSES, st.booleans())
PRUNES = st.tuples(st.just("prune"), st.sampled_from(["1", "2", "3"]), FUSES, st.booleans())
RESTARTS = st.tuples(st.just("restart"), st.just(""), FUSES, st.booleans())
ROTS = st.tuples(st.just("rot"), st.just(""), st.none(), st.booleans())
COPIES_ROT = [("restart", "", None, False)] * 2 + [("rot", "", None, False)] * 2
STEPS = st.lists(st.one_of(SAVES, SAVES, SEALS, PRUNES, RESTARTS, ROTS), min_size=1, max_size=12)


class Life:
    """A job's life on a volume, and what must be true of it."""

    def __init__(self, root: Path, dying: DyingOs, seed: int) -> None:
        self.random = Random(seed)
        self.dying = dying
        self.root = root
        self.store = VolumeStore(root, workers=1)
        self.attempt = 0
        self.epoch = 0
        self.right: dict[CheckpointName, Files] = {}  # what a complete checkpoint of that name holds
        self.perhaps: dict[CheckpointName, Files] = {}  # one that is being digested
        self.rotten: set[CheckpointName] = set()
        self.begin()

    def begin(self) -> None:
        (self.root / f"attempt-{self.attempt}").mkdir(parents=True, exist_ok=True)
        self.watch = CheckpointWatcher(self.root / f"attempt-{self.attempt}", is_open=lambda _: False)

    def live(self, step: str, choice: str, left: int | None, machine: bool) -> None:
        work: dict[str, Callable[[str], None]] = {
            "save": lambda style: self.save(style, left, machine),
            "seal": lambda _: self.do(self.seal, left, machine),
            "prune": lambda keep: self.do(lambda: self.prune(int(keep)), left, machine),
            "restart": lambda _: self.restart(left, machine),
            "rot": lambda _: self.rot(),
        }
        work[step](choice)

    def do(self, work: Callable[[], None], left: int | None, machine: bool) -> None:
        """Work of the sidecar. When it dies, the training goes on; when the machine does, another attempt begins."""
        if dies(Fuse(left, self.random), self.dying, None, work) and machine:
            self.dying.cut_power(self.root, self.random)
            self.restart(None, False)

    def save(self, style: str, left: int | None, machine: bool) -> None:
        """By the training program; it may be killed before any of its steps, and the attempt is over then."""
        self.epoch += 1
        name = checkpoint_name(self.epoch, self.attempt)
        files = {f"{number}.bin": self.random.randbytes(self.random.randint(0, 200)) for number in range(3)}
        target = self.root / name.folder
        folder = target.with_name(f".{target.name}.partial") if style == "rename" else target
        folder.mkdir()
        steps = left if left is not None else 100
        for path, written in list(files.items())[:steps]:
            (folder / path).write_bytes(written[: len(written) if steps > len(files) else self.random.randint(0, 200)])
        if steps <= len(files):
            return self.restart(None, machine)
        if style == "rename":
            await_tick(folder)
            folder.rename(target)
        elif style == "marker":
            (folder / MARKER).write_text(json.dumps({"shards": 1, "ranks": [0]}))
        else:
            self.dying.never_synced(folder)
            return None  # nobody can tell yet that it is complete
        self.right[name] = files
        return None

    def seal(self) -> None:
        self.watch.scan(0.0)
        for seen in self.watch.scan(6.0):
            if seen.complete and self.store.manifest(seen.name) is None:
                self.perhaps[seen.name] = content(self.root / seen.name.folder)
                self.store.put(seen.name, self.root / seen.name.folder, ABOUT)

    def settle(self) -> None:
        """A sidecar that dies while it digests may have written the manifest before."""
        for name, files in self.perhaps.items():
            if name in self.store.names(self.attempt) and self.store.manifest(name):
                self.right.setdefault(name, files)
        self.perhaps.clear()

    def prune(self, keep: int) -> None:
        self.settle()
        newest = max(self.right, default=None)
        try:
            for name in expired(stored_checkpoints(self.store, self.attempt), keep, self.attempt):
                self.store.delete(name)
        finally:
            there = set(self.store.names(self.attempt))
            self.right = {name: files for name, files in self.right.items() if name in there}
            held = stays(newest, self.right, self.rotten, keep, self.attempt)
            assert held, f"{newest} was the newest, and is deleted"

    def rot(self) -> None:
        """A byte of a digested checkpoint changes by itself."""
        self.settle()
        sealed = [name for name in self.right if self.store.manifest(name) is not None]
        if sealed:
            name = self.random.choice(sorted(sealed))
            path = self.root / name.folder / "1.bin"
            path.write_bytes(bytes([*path.read_bytes(), 1]))
            del self.right[name]
            self.rotten.add(name)

    def restart(self, left: int | None, machine: bool) -> None:
        """The next attempt. Its restore may die, too, and is then done again."""
        self.attempt += 1
        self.begin()
        if dies(Fuse(left, self.random), self.dying, None, self.restore) and machine:
            self.dying.cut_power(self.root, self.random)
        self.dying.lives_on()
        self.restore()

    def restore(self) -> None:
        self.settle()
        folder = self.root / f"attempt-{self.attempt}"
        self.store.remove_interrupted(self.attempt)
        got = resume(self.store, folder, self.attempt, ABOUT, lambda _: None)
        write_decision(self.store, self.attempt, got, ABOUT.job)
        expected = max((name.epoch for name in self.right), default=0)
        if got is None:
            assert expected == 0, f"epoch {expected} was complete, and nothing was resumed from"
            return
        assert got.epoch == expected, f"resumed from epoch {got.epoch}; the newest complete one is {expected}"
        found = content(folder / got.folder_name)
        origins = [files for name, files in self.right.items() if name.epoch == got.epoch]
        assert found in origins, f"{got} does not hold what was saved"
        self.right[checkpoint_name(got.epoch, self.attempt)] = found
        assert (folder / got.folder_name / MANIFEST).exists()


def stays(
    newest: CheckpointName | None,
    right: Collection[CheckpointName],
    rotten: set[CheckpointName],
    keep: int,
    attempt: int,
) -> bool:
    """Nobody knows of rot before something is read: as many as are kept may all be rotten, and so may a second copy."""
    if newest is None or newest in right:
        return True
    newer = [name for name in rotten if name > newest]
    copied = any(name.epoch == newest.epoch and name.attempt < attempt for name in newer)
    return copied or len({name.epoch for name in newer}) >= keep


@pytest.mark.timeout(1800)  # thousands of waits for the disk, which others use, too
@settings(max_examples=CASES, deadline=None)
@example(steps=[("save", "plain", None, False), ("seal", "", 8, False)], seed=0)  # the manifest is there, not synced
@example(steps=[("save", "rename", None, False), *COPIES_ROT, ("prune", "2", None, False)], seed=0)
@given(steps=STEPS, seed=st.integers(0, 1 << 32))
def test_a_writer_that_dies_anywhere_leaves_a_volume_that_can_be_resumed_from(
    steps: list[tuple[str, str, int | None, bool]], seed: int
) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        with dying_os() as dying:
            life = Life(root, dying, seed)
            for step in steps:
                life.live(*step)
            life.restart(None, False)
    finally:
        shutil.rmtree(root)


UPLOADS = st.tuples(st.just("upload"), FUSES)
SAVED_ANEW = st.tuples(st.just("again"), FUSES)
PRUNED = st.tuples(st.just("prune"), FUSES)
RESTARTED = st.tuples(st.just("restart"), FUSES)
ROTTEN = st.tuples(st.just("rot"), st.none())
REMOTE_STEPS = st.lists(st.one_of(UPLOADS, UPLOADS, SAVED_ANEW, PRUNED, RESTARTED, ROTTEN), min_size=1, max_size=12)


class RemoteLife:
    """A job's life with an object store; its volume dies with each of its pods."""

    def __init__(self, folder: Path, dying: DyingOs, seed: int) -> None:
        self.random = Random(seed)
        self.dying = dying
        self.folder = folder
        self.bucket = MemoryBucket()
        self.store = ObjectStore(self.bucket, workers=1)
        self.attempt = 0
        self.epoch = 0
        self.right: dict[
            CheckpointName, list[Files]
        ] = {}  # what a checkpoint may hold: two things while it is replaced
        # Uploads that died, and may have been whole by then; rotten ones, whose files a restore may have had before.
        self.perhaps: dict[CheckpointName, list[Files]] = {}
        self.rotten: set[CheckpointName] = set()

    @property
    def volume(self) -> Path:
        return self.folder / str(self.attempt)

    def live(self, step: str, left: int | None) -> None:
        work: dict[str, Callable[[], None]] = {
            "upload": lambda: self.upload(checkpoint_name(self.epoch + 1, self.attempt), left),
            "again": lambda: self.upload(checkpoint_name(self.epoch, self.attempt), left),
            "prune": lambda: self.prune(left),
            "restart": lambda: self.restart(left),
            "rot": self.rot,
        }
        work[step]()

    def upload(self, name: CheckpointName, left: int | None) -> None:
        self.epoch = name.epoch
        files = {f"{number}.bin": self.random.randbytes(self.random.choice([0, 5, 90])) for number in range(3)}
        files |= {"same.bin": b"in every one of them", f"{self.random.randint(0, 9)}.own": b"now and then"}
        source = self.volume / name.folder
        shutil.rmtree(source, ignore_errors=True)
        fill(source, files)
        if dies(Fuse(left, self.random), self.dying, self.bucket, lambda: self.store.put(name, source, ABOUT)):
            if name in self.right:
                self.right[name].append(files)
            else:
                self.perhaps.setdefault(name, []).append(files)
            if self.random.random() < 0.5:
                return self.restart(None)
            # The sidecar is started again, and goes on where it was.
            self.store.put(name, source, ABOUT)
        self.right[name] = [files]
        self.rotten.discard(name)
        self.perhaps.pop(name, None)
        return None

    def prune(self, left: int | None) -> None:
        newest = max(self.right, default=None)

        def work() -> None:
            for name in expired(stored_checkpoints(self.store, self.attempt), 2, self.attempt):
                self.store.delete(name)

        dies(Fuse(left, self.random), self.dying, self.bucket, work)
        there = {found.name for found in stored_checkpoints(self.store, self.attempt) if found.valid}
        self.right = {name: files for name, files in self.right.items() if name in there}
        assert stays(newest, self.right, self.rotten, 2, self.attempt), f"{newest} was the newest, and is deleted"

    def rot(self) -> None:
        if self.right:
            name = self.random.choice(sorted(self.right))
            manifest = self.store.manifest(name)
            assert manifest is not None
            key = f"{name.folder}/{self.random.choice(manifest.files).key}"
            held = self.bucket.stored[key]
            self.bucket.stored[key] = held._replace(content=held.content + b"!")
            self.perhaps[name] = self.right.pop(name)
            self.rotten.add(name)

    def restart(self, left: int | None) -> None:
        self.attempt += 1
        dies(Fuse(left, self.random), self.dying, self.bucket, self.restore)
        self.restore()

    def restore(self) -> None:
        folder = self.volume / f"attempt-{self.attempt}"
        got = resume(self.store, folder, self.attempt, ABOUT, lambda _: None)
        write_decision(self.store, self.attempt, got, ABOUT.job)
        expected = max((name.epoch for name in self.right), default=0)
        if got is None:
            assert expected == 0, f"epoch {expected} was complete, and nothing was resumed from"
            return
        assert got.epoch >= expected, f"resumed from epoch {got.epoch}; the newest complete one is {expected}"
        allowed = [*self.right.get(got, []), *self.perhaps.get(got, [])]
        assert content(folder / got.folder_name) in allowed, f"{got} does not hold what was saved"
        if got not in self.rotten:
            self.right[got] = [content(folder / got.folder_name)]
        self.epoch = max(self.epoch, got.epoch)


@pytest.mark.timeout(1800)  # thousands of waits for the disk, which others use, too
@settings(max_examples=CASES, deadline=None)
@given(steps=REMOTE_STEPS, seed=st.integers(0, 1 << 32))
def test_with_an_object_store(steps: list[tuple[str, int | None]], seed: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with dying_os() as dying:
            life = RemoteLife(folder, dying, seed)
            for step in steps:
                life.live(*step)
            life.restart(None)
    finally:
        shutil.rmtree(folder)
