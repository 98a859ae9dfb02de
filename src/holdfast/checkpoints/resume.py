"""What an attempt resumes from: the newest valid checkpoint, whatever state earlier attempts have left."""

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
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName, SaveInfo, parse
from holdfast.checkpoints.store import CheckpointStore

# Which checkpoints count: a new attempt fences off all earlier attempts at the checkpoint that it resumed from.
#
# A worker on a partitioned node may go on saving without end, and get further than the attempt that took over. Every
# attempt stores where it began; checkpoints that earlier attempts save beyond that are not a part of its history.


class CheckpointPosition(NamedTuple):
    """A position in the order of checkpoints."""

    epoch: int
    attempt: int


BEGINNING = CheckpointPosition(-1, -1)


class ResumeDecision(NamedTuple):
    """Where an attempt begins: `name` is what it resumes from, `until` the last counting one of earlier attempts.

    The two differ once a worker of the attempt was replaced and resumes from a checkpoint of the attempt itself.
    """

    job: str
    name: CheckpointName | None
    until: CheckpointPosition


class Fence:
    """Reads resume decisions when they are needed, each decision once."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._decided_attempts: list[int] | None = None
        self._decisions: dict[int, ResumeDecision | None] = {}

    def superseded_by(self, name: CheckpointName, job: str) -> int | None:
        """The job's attempt that had begun before this checkpoint was saved; None if the checkpoint counts."""
        superseded_by = None
        for attempt in self._later_attempts(name.attempt):
            decision = self._read_decision(attempt)
            # An earlier job under the same prefix has used the same attempt numbers.
            if decision is None or decision.job != job:
                continue
            if decision.name == name:
                superseded_by = None  # resumed from all the same, since there was no other checkpoint
            elif superseded_by is None and (name.epoch, name.attempt) > decision.until:
                superseded_by = attempt
        return superseded_by

    def _later_attempts(self, attempt: int) -> list[int]:
        if self._decided_attempts is None:
            self._decided_attempts = self._store.decided_attempts()
        return [later for later in self._decided_attempts if later > attempt]

    def _read_decision(self, attempt: int) -> ResumeDecision | None:
        if attempt not in self._decisions:
            self._decisions[attempt] = decode(self._store.read_decision(attempt))
        return self._decisions[attempt]


def encode(decision: ResumeDecision) -> bytes:
    name = decision.name
    start = {"attempt": name.attempt, "checkpoint": name.folder_name} if name else {"nothing": True}
    return json.dumps({"job": decision.job, **start, "until": decision.until}).encode()


def decode(content: bytes | None) -> ResumeDecision | None:
    """None for content that is not a decision."""
    try:
        fields = json.loads(content or b"")
        job, (epoch, attempt) = fields["job"], fields["until"]
        is_fresh_start = fields.get("nothing") is True
        name = None if is_fresh_start else parse(f"attempt-{fields['attempt']}", fields["checkpoint"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if (
        not isinstance(job, str)
        or type(epoch) is not int
        or type(attempt) is not int
        or (name is None) != is_fresh_start
    ):
        return None
    return ResumeDecision(job, name, CheckpointPosition(epoch, attempt))


# A checkpoint that is replaced again and again while it is read is given up after so many attempts.
MAX_ATTEMPTS = 5
Note = Callable[[str], None]


class RestoreOutcome(Enum):
    TAKEN = auto()
    LEFT_OUT = auto()
    CHANGED = auto()  # the checkpoint changed while it was read


def resume(
    store: CheckpointStore, attempt_folder: Path, attempt: int, about: SaveInfo, note: Note
) -> CheckpointName | None:
    """Restore the newest valid checkpoint into the attempt's folder; None if there is no checkpoint at all.

    A damaged checkpoint is quarantined, `note` receives a message, and the checkpoint before it is used. A fenced
    checkpoint is used only when there is no other one: that is better than to begin anew. A store that can't be read
    raises: to begin anew, or further back, because of a network fault would lose work.
    """
    search = _ResumeSearch(store, attempt_folder, attempt, about, note)
    return search.newest() or search.newest_fenced()


class _ResumeSearch:
    def __init__(self, store: CheckpointStore, attempt_folder: Path, attempt: int, about: SaveInfo, note: Note) -> None:
        self._store = store
        self._folder = attempt_folder
        self._attempt = attempt
        self._about = about
        self._note = note
        self._fence = Fence(store)
        self._fenced: set[CheckpointName] = set()

    def newest(self) -> CheckpointName | None:
        return self._first_restored(lambda _: True, self._passes_fence)

    def newest_fenced(self) -> CheckpointName | None:
        """The newest of the checkpoints that were left out because of the fence."""
        return self._first_restored(self._fenced.__contains__, self._try_restore) if self._fenced else None

    def _first_restored(
        self, wanted: Callable[[CheckpointName], bool], take: Callable[[CheckpointName], RestoreOutcome]
    ) -> CheckpointName | None:
        attempts: Counter[CheckpointName] = Counter()
        while name := next((name for name in self._names(wanted) if attempts[name] < MAX_ATTEMPTS), None):
            outcome = take(name)
            if outcome is RestoreOutcome.TAKEN:
                return name
            attempts[name] += MAX_ATTEMPTS if outcome is RestoreOutcome.LEFT_OUT else 1
        return None

    def _names(self, wanted: Callable[[CheckpointName], bool]) -> Iterator[CheckpointName]:
        return filter(wanted, self._store.names(self._attempt))

    def _passes_fence(self, name: CheckpointName) -> RestoreOutcome:
        manifest = _current_manifest(self._store, name)
        superseded_by = self._fence.superseded_by(name, manifest.about.job if manifest else self._about.job)
        if superseded_by is None:
            return self._try_restore(name)
        self._fenced.add(name)
        self._note(f"{name} is left out: attempt {superseded_by} had begun further back when it was saved")
        return RestoreOutcome.LEFT_OUT

    def _try_restore(self, name: CheckpointName) -> RestoreOutcome:
        try:
            manifest = self._store.manifest(name) or self._store.write_missing_manifest(name, self._about)
        except (UnsafeContent, Incomplete) as error:
            self._note(f"{name} is left out: {error}")
            return RestoreOutcome.LEFT_OUT
        if manifest is None:
            self._note(f"{name} is left out: it was never complete")
            return RestoreOutcome.LEFT_OUT
        return _restore(self._store, name, self._folder / name.folder_name, manifest, self._note)


def _restore(
    store: CheckpointStore, name: CheckpointName, target: Path, manifest: CheckpointManifest, note: Note
) -> RestoreOutcome:
    try:
        store.get(name, target)
    except CheckpointNotFound:
        return RestoreOutcome.CHANGED
    except Corrupt as error:
        if _current_manifest(store, name) != manifest:
            return RestoreOutcome.CHANGED
        _quarantine(store, name, error, note)
        return RestoreOutcome.LEFT_OUT
    return RestoreOutcome.TAKEN


def _quarantine(store: CheckpointStore, name: CheckpointName, damage: Corrupt, note: Note) -> None:
    try:
        note(f"{name} is damaged and was set aside as {store.quarantine(name)}: {damage}")
    except StoreError as error:
        note(f"{name} is damaged and is left out: {damage}; it could not be set aside: {error}")


def _current_manifest(store: CheckpointStore, name: CheckpointName) -> CheckpointManifest | None:
    try:
        return store.manifest(name)
    except UnsafeContent:
        return None


def write_decision(store: CheckpointStore, attempt: int, name: CheckpointName | None, job: str) -> None:
    """The first worker decides for all: workers that decide at different times might begin at different epochs."""
    until = BEGINNING if name is None else CheckpointPosition(name.epoch, name.attempt)
    if name is not None and name.attempt == attempt:
        # The attempt resumes from its own checkpoint: where it began stays the same.
        before = decode(store.read_decision(attempt))
        until = before.until if before is not None and before.job == job else until
    store.write_decision(attempt, encode(ResumeDecision(job, name, until)))


class DecisionPending(CheckpointError):
    """The first worker has not stored its resume decision yet."""


def read_decision(store: CheckpointStore, attempt: int, job: str) -> CheckpointName | None:
    """The checkpoint that the first worker has chosen for this attempt; None if there is nothing to resume from."""
    content = store.read_decision(attempt)
    decision = decode(content)
    if content is None or (decision is not None and decision.job != job):
        raise DecisionPending(f"worker 0 has not written to {store.address} yet what attempt {attempt} resumes from")
    if decision is None or (decision.name is not None and decision.name.attempt > attempt):
        raise UnsafeContent(f"what worker 0 wrote to {store.address} for attempt {attempt} can't be read: remove it")
    return decision.name
