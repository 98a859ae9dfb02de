"""Lets jobs start when all their workers fit: one look at everyone who waits, a moment after something changed."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, TypeVar

import structlog

from holdfast.api.builtin import Job
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.resources import JOBS, PRIORITY_CLASSES, TRAINING_JOBS
from holdfast.controllers.gangs import (
    AttemptKey,
    Avoided,
    GangReader,
    Template,
    attempt_key,
    is_queued,
    needs_admission,
)
from holdfast.controllers.room import SharedLedger
from holdfast.planning.admission import ADMITTED, AdmissionDecision, Gang, run_admission
from holdfast.runtime.clocks import Now
from holdfast.runtime.informer import Informers
from holdfast.runtime.operator import Operator
from holdfast.runtime.reflector import Handler

T = TypeVar("T", bound=Object)

# News comes in swarms: all pods of a job, all jobs of a user.
PAUSE_S = 0.005
# What a job waits for is written into its status: words that change faster than people read are not worth it, and
# numbers less so: a long line must not write itself to death.
MESSAGE_INTERVAL_S = 1.0
NUMBERS_CALM_S = 30.0
# After a look that failed; whatever it was may pass.
RETRY_S = 5.0
# 3 nodes have 2 free, 1 node has 2 free, no node has 2 free: the same words with other numbers.
NUMBER = re.compile(r"(no node|[0-9]+ nodes?) (has|have)|[0-9]+")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PublishedDecision(NamedTuple):
    """The verdict that a job has heard, and when."""

    verdict: AdmissionDecision
    at_s: float


class GangAdmission:
    """A source of news for the jobs' controller: a job hears when its verdict has changed."""

    def __init__(
        self, gangs: GangReader, room: SharedLedger, *, now: Now, patience_s: float, per_namespace: int, enabled: bool
    ) -> None:
        self._gangs = gangs
        self._room = room
        self._now = now
        self._patience_s = patience_s
        self._per_namespace = per_namespace
        self._enabled = enabled
        self._ledger = room.ledger
        self._version = room.ledger.version
        self._told: dict[AttemptKey, PublishedDecision] = {}
        self._add: Callable[[Key], None] = lambda _: None
        # Nobody asks before all stores are full and this process leads; until then a look would be wrong or in vain.
        self._is_asked = False
        self._pause_s = PAUSE_S
        self._next: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None

    @classmethod
    def of(
        cls,
        operator: Operator,
        *,
        room: SharedLedger,
        shape: Template,
        avoided: Avoided = lambda _: (),
        now: Now,
        patience_s: float,
        per_namespace: int = 1,
        enabled: bool = True,
    ) -> "GangAdmission":
        """On the operator's stores. `shape` is the pod template of a job's workers, with the nodes that it avoids."""
        gangs = GangReader(operator, shape, avoided)
        return cls(gangs, room, now=now, patience_s=patience_s, per_namespace=per_namespace, enabled=enabled)

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        if not self._enabled:
            return
        self._add = add
        self._room.attach(informers)
        self._ledger.listeners.append(self._on_capacity_change)
        informers.of(TRAINING_JOBS).handlers.append(self._on_change(_queue_key))
        informers.of(JOBS).handlers.append(self._on_change(_attempt))
        informers.of(PRIORITY_CLASSES).handlers.append(self._on_change(lambda each: (each.value, each.global_default)))

    def verdict(self, job: TrainingJob) -> AdmissionDecision | None:
        """Whether the job's attempt may start; None for who is not in line, or was not looked at: it will hear."""
        self._is_asked = True
        if not self._enabled or is_queued(job):
            return ADMITTED
        if not needs_admission(job, self._now()):
            return None
        told = self._told.get(attempt_key(job))
        if told is None:
            self._schedule_pass()
        return told.verdict if told is not None else None

    def _on_capacity_change(self, _machine: str) -> None:
        """Looks again when more or less is free; what gangs themselves are expected to take makes no difference."""
        if self._ledger.version != self._version:
            self._version = self._ledger.version
            self._schedule_pass()

    def _on_change(self, seen: Callable[[T], object]) -> Handler[T]:
        """Looks again when something changed that is looked at."""

        def changed(old: T | None, new: T | None) -> None:
            if old is None or new is None or seen(old) != seen(new):
                self._schedule_pass()

        return changed

    def _schedule_pass(self, after_s: float = 0.0) -> None:
        """A look that takes long is not taken more often than it lasts."""
        if self._is_asked and self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.call_later(max(self._pause_s, after_s), self._run_pass)

    def _run_pass(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._decide(began)
        except Exception:
            log.exception("admission failed, trying again", retry_in_s=RETRY_S)
            self._schedule_pass(RETRY_S)
        self._pause_s = max(PAUSE_S, loop.time() - began)

    def _decide(self, at_s: float) -> None:
        now = self._now()
        line = self._gangs.read(now)
        gangs = {turn: entry for turn, entry in line.items() if isinstance(entry, Gang)}
        outlook = run_admission(gangs.values(), self._ledger, now, self._patience_s, self._per_namespace)
        self._ledger.set_gang_demand(outlook.taken, outlook.kept)
        judged = outlook.verdicts
        for turn, gang in gangs.items():
            if gang.state != "started" and judged[turn.uid].admitted:
                self._gangs.mark_admitted(turn)
        verdicts = {turn: judged[turn.uid] if isinstance(entry, Gang) else entry for turn, entry in line.items()}
        late_s = [*self._publish(verdicts, at_s), *_patience_left_s(gangs.values(), now, self._patience_s)]
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(min(late_s), self._schedule_pass) if late_s else None

    def _publish(self, verdicts: Mapping[AttemptKey, AdmissionDecision], at_s: float) -> list[float]:
        """Who may start hears it at once; other words can wait a little: for how long."""
        before, self._told = self._told, {}
        late_s = []
        for turn, verdict in verdicts.items():
            told = before.get(turn)
            if told is not None and told.verdict.admitted == verdict.admitted:
                if told.verdict.message == verdict.message:
                    self._told[turn] = PublishedDecision(verdict, told.at_s)
                    continue
                calm_s = _message_interval_s(told.verdict.message, verdict.message)
                if at_s < told.at_s + calm_s:
                    self._told[turn] = told
                    late_s.append(told.at_s + calm_s - at_s)
                    continue
            self._told[turn] = PublishedDecision(verdict, at_s)
            log.debug("verdict", key=str(turn.key), admitted=verdict.admitted, message=verdict.message)
            self._add(turn.key)
        return late_s


def _message_interval_s(old: str, new: str) -> float:
    return NUMBERS_CALM_S if NUMBER.sub("", old) == NUMBER.sub("", new) else MESSAGE_INTERVAL_S


def _patience_left_s(gangs: Iterable[Gang], now: datetime, patience_s: float) -> Iterator[float]:
    """When a job that restarts runs out of patience its room is free, and nothing else tells."""
    for gang in gangs:
        left_s = patience_s - gang.waited_s(now)
        if gang.state == "keeping" and left_s >= 0:
            # A moment more: then it is over.
            yield left_s + 1.0


def _queue_key(job: TrainingJob) -> object:
    """What decides whether and where it stands in line; its progress does not."""
    status = job.status
    told = (status.state, status.next_retry_time) if status is not None else None
    return attempt_key(job), job.metadata.deletion_timestamp, is_queued(job), told


def _attempt(job: Job) -> object:
    return job.spec, job.metadata.deletion_timestamp, job.condition("Complete"), job.condition("Failed")
