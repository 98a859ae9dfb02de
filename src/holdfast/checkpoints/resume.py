"""What an attempt goes on from: the newest checkpoint that is valid, whatever the attempts before it have left."""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path

from holdfast.checkpoints.errors import CheckpointError, Corrupt, Incomplete, NoCheckpoint, Refused, StoreError
from holdfast.checkpoints.fence import BEGINNING, Decision, Fence, Mark, decode, encode
from holdfast.checkpoints.manifest import About, Manifest
from holdfast.checkpoints.names import Name
from holdfast.checkpoints.store import Store

# A checkpoint that is replaced again and again while it is read is somebody else's trouble.
TRIES = 5
Note = Callable[[str], None]


class Outcome(Enum):
    TAKEN = auto()
    LEFT_OUT = auto()
    CHANGED = auto()  # while it was read


def resume(store: Store, attempt_folder: Path, attempt: int, about: About, note: Note) -> Name | None:
    """The newest valid checkpoint, which then is in the attempt's folder; None if there is none at all.

    What is damaged is set aside, `note` is told in a sentence, and the one before it is used. What a worker that was
    cut off has saved is taken only when there is nothing else: it is better than to begin anew. A store that can't be
    read raises: to begin anew, or further back, because of a network fault would lose work.
    """
    search = _Search(store, attempt_folder, attempt, about, note)
    return search.newest() or search.newest_beyond()


class _Search:
    def __init__(self, store: Store, attempt_folder: Path, attempt: int, about: About, note: Note) -> None:
        self._store = store
        self._folder = attempt_folder
        self._attempt = attempt
        self._about = about
        self._note = note
        self._fence = Fence(store)
        self._beyond: set[Name] = set()

    def newest(self) -> Name | None:
        return self._first(lambda _: True, self._within)

    def newest_beyond(self) -> Name | None:
        """Of those that were left out because of the fence."""
        return self._first(self._beyond.__contains__, self._try) if self._beyond else None

    def _first(self, wanted: Callable[[Name], bool], take: Callable[[Name], Outcome]) -> Name | None:
        tries: Counter[Name] = Counter()
        while name := next((name for name in self._names(wanted) if tries[name] < TRIES), None):
            outcome = take(name)
            if outcome is Outcome.TAKEN:
                return name
            tries[name] += TRIES if outcome is Outcome.LEFT_OUT else 1
        return None

    def _names(self, wanted: Callable[[Name], bool]) -> Iterator[Name]:
        return filter(wanted, self._store.names(self._attempt))

    def _within(self, name: Name) -> Outcome:
        manifest = _manifest_now(self._store, name)
        ended_by = self._fence.ended_by(name, manifest.about.job if manifest else self._about.job)
        if ended_by is None:
            return self._try(name)
        self._beyond.add(name)
        self._note(f"{name} is left out: attempt {ended_by} had begun further back when it was saved")
        return Outcome.LEFT_OUT

    def _try(self, name: Name) -> Outcome:
        try:
            manifest = self._store.manifest(name) or self._store.adopt(name, self._about)
        except (Refused, Incomplete) as error:
            self._note(f"{name} is left out: {error}")
            return Outcome.LEFT_OUT
        if manifest is None:
            self._note(f"{name} is left out: it was never complete")
            return Outcome.LEFT_OUT
        return _take(self._store, name, self._folder / name.leaf, manifest, self._note)


def _take(store: Store, name: Name, target: Path, manifest: Manifest, note: Note) -> Outcome:
    try:
        store.get(name, target)
    except NoCheckpoint:
        return Outcome.CHANGED
    except Corrupt as error:
        if _manifest_now(store, name) != manifest:
            return Outcome.CHANGED
        _set_aside(store, name, error, note)
        return Outcome.LEFT_OUT
    return Outcome.TAKEN


def _set_aside(store: Store, name: Name, damage: Corrupt, note: Note) -> None:
    try:
        note(f"{name} is damaged and was set aside as {store.quarantine(name)}: {damage}")
    except StoreError as error:
        note(f"{name} is damaged and is left out: {damage}; it could not be set aside: {error}")


def _manifest_now(store: Store, name: Name) -> Manifest | None:
    try:
        return store.manifest(name)
    except Refused:
        return None


def write_decision(store: Store, attempt: int, name: Name | None, job: str) -> None:
    """The first worker decides for all: workers that looked at different moments might begin at different epochs."""
    until = BEGINNING if name is None else Mark(name.epoch, name.attempt)
    if name is not None and name.attempt == attempt:
        # It goes on from what it has itself saved: where it began is what it was.
        before = decode(store.note(attempt))
        until = before.until if before is not None and before.job == job else until
    store.write_note(attempt, encode(Decision(job, name, until)))


class Undecided(CheckpointError):
    """The first worker has not said yet what to resume from."""


def decision(store: Store, attempt: int, job: str) -> Name | None:
    """What the first worker has decided for this attempt; None if there is nothing to resume from."""
    content = store.note(attempt)
    decided = decode(content)
    if content is None or (decided is not None and decided.job != job):
        raise Undecided(f"worker 0 has not written to {store.address} yet what attempt {attempt} resumes from")
    if decided is None or (decided.name is not None and decided.name.attempt > attempt):
        raise Refused(f"what worker 0 wrote to {store.address} for attempt {attempt} can't be read: remove it")
    return decided.name
