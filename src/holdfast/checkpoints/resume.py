"""What an attempt goes on from: the newest checkpoint that is valid, whatever the attempts before it have left."""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path

from holdfast.checkpoints.errors import (
    CheckpointError,
    CheckpointNotFound,
    Corrupt,
    Incomplete,
    StoreError,
    UnsafeContent,
)
from holdfast.checkpoints.fence import BEGINNING, CheckpointPosition, Fence, ResumeDecision, decode, encode
from holdfast.checkpoints.manifest import Manifest, SaveInfo
from holdfast.checkpoints.names import CheckpointName
from holdfast.checkpoints.store import Store

# A checkpoint that is replaced again and again while it is read is somebody else's trouble.
TRIES = 5
Note = Callable[[str], None]


class Outcome(Enum):
    TAKEN = auto()
    LEFT_OUT = auto()
    CHANGED = auto()  # while it was read


def resume(store: Store, attempt_folder: Path, attempt: int, about: SaveInfo, note: Note) -> CheckpointName | None:
    """The newest valid checkpoint, which then is in the attempt's folder; None if there is none at all.

    What is damaged is set aside, `note` is told in a sentence, and the one before it is used. What a worker that was
    cut off has saved is taken only when there is nothing else: it is better than to begin anew. A store that can't be
    read raises: to begin anew, or further back, because of a network fault would lose work.
    """
    search = _ResumeSearch(store, attempt_folder, attempt, about, note)
    return search.newest() or search.newest_fenced()


class _ResumeSearch:
    def __init__(self, store: Store, attempt_folder: Path, attempt: int, about: SaveInfo, note: Note) -> None:
        self._store = store
        self._folder = attempt_folder
        self._attempt = attempt
        self._about = about
        self._note = note
        self._fence = Fence(store)
        self._beyond: set[CheckpointName] = set()

    def newest(self) -> CheckpointName | None:
        return self._first(lambda _: True, self._passes_fence)

    def newest_fenced(self) -> CheckpointName | None:
        """Of those that were left out because of the fence."""
        return self._first(self._beyond.__contains__, self._try) if self._beyond else None

    def _first(
        self, wanted: Callable[[CheckpointName], bool], take: Callable[[CheckpointName], Outcome]
    ) -> CheckpointName | None:
        tries: Counter[CheckpointName] = Counter()
        while name := next((name for name in self._names(wanted) if tries[name] < TRIES), None):
            outcome = take(name)
            if outcome is Outcome.TAKEN:
                return name
            tries[name] += TRIES if outcome is Outcome.LEFT_OUT else 1
        return None

    def _names(self, wanted: Callable[[CheckpointName], bool]) -> Iterator[CheckpointName]:
        return filter(wanted, self._store.names(self._attempt))

    def _passes_fence(self, name: CheckpointName) -> Outcome:
        manifest = _current_manifest(self._store, name)
        ended_by = self._fence.superseded_by(name, manifest.about.job if manifest else self._about.job)
        if ended_by is None:
            return self._try(name)
        self._beyond.add(name)
        self._note(f"{name} is left out: attempt {ended_by} had begun further back when it was saved")
        return Outcome.LEFT_OUT

    def _try(self, name: CheckpointName) -> Outcome:
        try:
            manifest = self._store.manifest(name) or self._store.write_missing_manifest(name, self._about)
        except (UnsafeContent, Incomplete) as error:
            self._note(f"{name} is left out: {error}")
            return Outcome.LEFT_OUT
        if manifest is None:
            self._note(f"{name} is left out: it was never complete")
            return Outcome.LEFT_OUT
        return _restore(self._store, name, self._folder / name.folder_name, manifest, self._note)


def _restore(store: Store, name: CheckpointName, target: Path, manifest: Manifest, note: Note) -> Outcome:
    try:
        store.get(name, target)
    except CheckpointNotFound:
        return Outcome.CHANGED
    except Corrupt as error:
        if _current_manifest(store, name) != manifest:
            return Outcome.CHANGED
        _quarantine(store, name, error, note)
        return Outcome.LEFT_OUT
    return Outcome.TAKEN


def _quarantine(store: Store, name: CheckpointName, damage: Corrupt, note: Note) -> None:
    try:
        note(f"{name} is damaged and was set aside as {store.quarantine(name)}: {damage}")
    except StoreError as error:
        note(f"{name} is damaged and is left out: {damage}; it could not be set aside: {error}")


def _current_manifest(store: Store, name: CheckpointName) -> Manifest | None:
    try:
        return store.manifest(name)
    except UnsafeContent:
        return None


def write_decision(store: Store, attempt: int, name: CheckpointName | None, job: str) -> None:
    """The first worker decides for all: workers that looked at different moments might begin at different epochs."""
    until = BEGINNING if name is None else CheckpointPosition(name.epoch, name.attempt)
    if name is not None and name.attempt == attempt:
        # It goes on from what it has itself saved: where it began is what it was.
        before = decode(store.read_decision(attempt))
        until = before.until if before is not None and before.job == job else until
    store.write_decision(attempt, encode(ResumeDecision(job, name, until)))


class DecisionPending(CheckpointError):
    """The first worker has not said yet what to resume from."""


def read_decision(store: Store, attempt: int, job: str) -> CheckpointName | None:
    """What the first worker has decided for this attempt; None if there is nothing to resume from."""
    content = store.read_decision(attempt)
    decided = decode(content)
    if content is None or (decided is not None and decided.job != job):
        raise DecisionPending(f"worker 0 has not written to {store.address} yet what attempt {attempt} resumes from")
    if decided is None or (decided.name is not None and decided.name.attempt > attempt):
        raise UnsafeContent(f"what worker 0 wrote to {store.address} for attempt {attempt} can't be read: remove it")
    return decided.name
