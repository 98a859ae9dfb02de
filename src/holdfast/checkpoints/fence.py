"""Which checkpoints count: an attempt that has begun ends the line of all before it, at what it resumed from.

A worker that was cut off with its node may go on saving for as long as it likes, and further than the attempt that took
over. Every attempt writes down where it began; what earlier ones save beyond that is not a part of its history.
"""

import json
from typing import NamedTuple

from holdfast.checkpoints.names import CheckpointName, parse
from holdfast.checkpoints.store import Store


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
