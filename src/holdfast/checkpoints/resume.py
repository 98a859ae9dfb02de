"""What an attempt goes on from: the newest checkpoint that is valid, whatever the attempts before it have left."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoints.errors import (
    CheckpointError,
    CheckpointNotFound,
    Corrupt,
    Incomplete,
    StoreError,
    UnsafeContent,
)
from holdfast.checkpoints.manifest import CheckpointName, Manifest, SaveInfo, parse
from holdfast.checkpoints.store import Store

# Which checkpoints count: an attempt that has begun ends the line of all before it, at what it resumed from.
#
# A worker that was cut off with its node may go on saving for as long as it likes, and further than the attempt that
# took over. Every attempt writes down where it began; what earlier ones save beyond that is not a part of its
# history.


class CheckpointPosition(NamedTuple):
    """A place in the order of checkpoints."""

    epoch: int
    attempt: int


BEGINNING = CheckpointPosition(-1, -1)


class ResumeDecision(NamedTuple):
    """Where an attempt begins: `name` is what it resumes from, `until` the last of earlier attempts' that counts.

    They differ once a worker of the attempt has been replaced, and goes on from what the attempt itself has saved.
    """

    job: str
    name: CheckpointName | None
    until: CheckpointPosition


class Fence:
    """Notes are read when they matter, each of them once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted: list[int] | None = None
        self._read: dict[int, ResumeDecision | None] = {}

    def superseded_by(self, name: CheckpointName, job: str) -> int | None:
        """The attempt of the job that had begun before this was saved; None if there is none, so that it counts."""
        ended_by = None
        for attempt in self._later(name.attempt):
            decided = self._read_decision(attempt)
            # Under a prefix that was another job's, attempts have been counted before.
            if decided is None or decided.job != job:
                continue
            if decided.name == name:
                ended_by = None  # taken all the same, since there was nothing else
            elif ended_by is None and (name.epoch, name.attempt) > decided.until:
                ended_by = attempt
        return ended_by

    def _later(self, attempt: int) -> list[int]:
        if self._noted is None:
            self._noted = self._store.decided_attempts()
        return [noted for noted in self._noted if noted > attempt]

    def _read_decision(self, attempt: int) -> ResumeDecision | None:
        if attempt not in self._read:
            self._read[attempt] = decode(self._store.read_decision(attempt))
        return self._read[attempt]


def encode(decided: ResumeDecision) -> bytes:
    name = decided.name
    began = {"attempt": name.attempt, "checkpoint": name.folder_name} if name else {"nothing": True}
    return json.dumps({"job": decided.job, **began, "until": decided.until}).encode()


def decode(content: bytes | None) -> ResumeDecision | None:
    """None for what is no decision."""
    try:
        facts = json.loads(content or b"")
        job, (epoch, attempt) = facts["job"], facts["until"]
        is_anew = facts.get("nothing") is True
        name = None if is_anew else parse(f"attempt-{facts['attempt']}", facts["checkpoint"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(job, str) or type(epoch) is not int or type(attempt) is not int or (name is None) != is_anew:
        return None
    return ResumeDecision(job, name, CheckpointPosition(epoch, attempt))


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
