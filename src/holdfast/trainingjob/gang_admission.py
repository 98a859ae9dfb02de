"""Gang admission of TrainingJobs: a job starts when all its workers fit.

One pass over all waiting jobs runs shortly after a change.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import structlog

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.scheduling.gang import ADMITTED, AdmissionDecision, Gang, GangQueue
from holdfast.trainingjob.gang_reader import (
    AttemptKey,
    Avoided,
    EntryChange,
    GangReader,
    Template,
    attempt_key,
    is_queued,
    needs_admission,
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Changes come in bursts: all pods of a job, all jobs of a user.
PAUSE_S = 0.005
# So many times as long as a pass took is the pause before the next: the operator has other things to do.
PAUSES_PER_PASS = 4
# No pass holds up other tasks for much longer than this, or for more changed nodes or decisions: the next goes on.
SLICE_S = 0.003
NODES_PER_SLICE = 250
DECISIONS_PER_SLICE = 100
# While no job waits, capacity that becomes free matters to nobody but GPUWorkloads.
REFRESH_S = 1.0
# The reason for waiting is written into the job's status. A message that changes faster than people read is not worth
# a write, and a changed number even less: a long queue must not drown in its own status writes.
MESSAGE_INTERVAL_S = 1.0
NUMBERS_INTERVAL_S = 30.0
# After a failed pass; the cause may be temporary.
RETRY_S = 5.0
# 3 nodes have 2 free, 1 node has 2 free, no node has 2 free: the same message with other numbers.
NUMBER = re.compile(r"(no node|[0-9]+ nodes?) (has|have)|[0-9]+")


class PublishedDecision(NamedTuple):
    """The last decision that a job was requeued for, and when."""

    decision: AdmissionDecision
    at_s: float


class GangAdmission:
    """An event source of the TrainingJob controller: requeues a job when its admission decision changes."""

    def __init__(
        self,
        gangs: GangReader,
        shared_ledger: SharedLedger,
        *,
        now: Now,
        starvation_timeout_s: float,
        per_namespace: int,
        enabled: bool,
    ) -> None:
        self._gangs = gangs
        self._shared_ledger = shared_ledger
        self._now = now
        self._starvation_timeout_s = starvation_timeout_s
        self._per_namespace = per_namespace
        self._enabled = enabled
        self._ledger = shared_ledger.ledger
        self._version = shared_ledger.ledger.version
        self._queue = GangQueue(self._ledger)
        self._attempts: dict[str, AttemptKey] = {}
        self._published: dict[AttemptKey, PublishedDecision] = {}
        # Decisions that are not published yet: the newest ones, and changed messages that have to wait.
        self._unpublished: dict[AttemptKey, AdmissionDecision] = {}
        self._passed_at_s = 0.0
        self._patience_ends: datetime | None = None
        self._add: Callable[[Key], None] = lambda _: None
        # No reconcile asks before all stores are synced and this process leads. Until then a pass would be wrong or
        # useless.
        self._is_active = False
        self._pause_s = PAUSE_S
        self._next_pass: asyncio.TimerHandle | None = None
        self._recheck: asyncio.TimerHandle | None = None

    @classmethod
    def of(
        cls,
        operator: Operator,
        *,
        shared_ledger: SharedLedger,
        template: Template,
        avoided: Avoided = lambda _: (),
        now: Now,
        starvation_timeout_s: float,
        per_namespace: int = 1,
        enabled: bool = True,
    ) -> "GangAdmission":
        """Reads the operator's stores. `shape` returns the pod template of a job's workers, with the nodes to avoid."""
        gangs = GangReader(operator, template, avoided)
        return cls(
            gangs,
            shared_ledger,
            now=now,
            starvation_timeout_s=starvation_timeout_s,
            per_namespace=per_namespace,
            enabled=enabled,
        )

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        if not self._enabled:
            return
        self._add = add
        self._shared_ledger.attach(informers)
        self._queue.follow()
        self._ledger.update_gang_demand = self._update_gang_demand
        self._ledger.listeners.append(self._on_capacity_change)
        self._gangs.attach(informers, lambda: self._schedule_pass())

    def decision(self, job: TrainingJob) -> AdmissionDecision | None:
        """Whether the job's attempt may start; None outside the queue, or before a pass, which requeues the job."""
        self._is_active = True
        if not self._enabled or is_queued(job):
            return ADMITTED
        if not needs_admission(job, self._now()):
            return None
        published = self._published.get(attempt_key(job))
        if published is None:
            self._gangs.mark_changed(job.metadata.key)
            self._schedule_pass()
        return published.decision if published is not None else None

    def _on_capacity_change(self, _node: str) -> None:
        """Schedules a pass when free capacity changes; the expected demand of the gangs themselves does not count."""
        if self._ledger.version != self._version:
            self._version = self._ledger.version
            self._schedule_pass(0.0 if self._queue.needs_pass else REFRESH_S)

    def _schedule_pass(self, after_s: float = 0.0) -> None:
        """A pass that is scheduled for later comes earlier if needed."""
        if not self._is_active:
            return
        loop = asyncio.get_running_loop()
        at_s = loop.time() + max(self._pause_s, after_s)
        if self._next_pass is not None and self._next_pass.when() <= at_s:
            return
        if self._next_pass is not None:
            self._next_pass.cancel()
        self._next_pass = loop.call_at(at_s, self._run_pass)

    def _run_pass(self) -> None:
        self._next_pass = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._decide(began)
            self._pause_s = max(PAUSE_S, PAUSES_PER_PASS * (loop.time() - began))
        except Exception:
            log.exception("admission failed, trying again", retry_in_s=RETRY_S)
            self._pause_s = RETRY_S
            self._schedule_pass()

    def _decide(self, at_s: float) -> None:
        """Reads what has changed, and looks at those who wait if that may change anything for them."""
        now, loop = self._now(), asyncio.get_running_loop()
        for change in self._gangs.read_changed(now, lambda: loop.time() >= at_s + SLICE_S):
            self._take_in(change)
        is_due = self._queue.needs_pass or (self._queue.is_outdated and at_s >= self._passed_at_s + REFRESH_S)
        if self._gangs.is_behind or (is_due and not self._queue.catch_up(NODES_PER_SLICE)):
            self._schedule_pass()
            return
        if is_due:
            self._admit(now, at_s)
        self._schedule_recheck(now, at_s, self._publish(at_s))

    def _take_in(self, change: EntryChange) -> None:
        before, after = change
        if before is not None and (after is None or after.attempt_id != before.attempt_id):
            self._leave(before.attempt_id)
        if after is None:
            return
        attempt_id, value = after
        if not isinstance(value, Gang):
            self._queue.remove(attempt_id.uid)
            self._unpublished[attempt_id] = value
            return
        self._queue.put(value)
        self._attempts[value.uid] = attempt_id
        if value.state == "started":
            self._unpublished[attempt_id] = ADMITTED

    def _leave(self, attempt_id: AttemptKey) -> None:
        self._queue.remove(attempt_id.uid)
        self._attempts.pop(attempt_id.uid, None)
        self._published.pop(attempt_id, None)
        self._unpublished.pop(attempt_id, None)

    def _update_gang_demand(self) -> None:
        """For those who take capacity beside the gangs, whenever they are about to."""
        if not (self._is_active and (self._queue.is_outdated or self._gangs.is_behind)):
            return
        self._schedule_pass()
        try:
            for change in self._gangs.read_changed(self._now(), lambda: False):
                self._take_in(change)
            self._ledger.set_gang_demand(self._queue.expected_demand(), self._ledger.nodes_held_for_gangs)
        except Exception:
            log.exception("the demand of gangs can't be made out")

    def _admit(self, now: datetime, at_s: float) -> None:
        if not self._ledger.nodes_held_for_gangs and (admitted := self._queue.start_all()):
            for uid in admitted:
                self._unpublished[self._attempts[uid]] = ADMITTED
                self._gangs.mark_admitted(self._attempts[uid])
            return
        result = self._queue.run_pass(now, self._starvation_timeout_s, self._per_namespace)
        held = result.held_nodes if result.is_complete else result.held_nodes | self._ledger.nodes_held_for_gangs
        self._ledger.set_gang_demand(result.demand, held)
        for uid, decision in result.decisions.items():
            attempt_id = self._attempts[uid]
            self._unpublished[attempt_id] = decision
            if decision.admitted:
                self._gangs.mark_admitted(attempt_id)
        self._passed_at_s, self._patience_ends = at_s, result.patience_ends
        if not result.is_complete:
            self._schedule_pass()

    def _publish(self, at_s: float) -> list[float]:
        """Publishes a changed admission at once; a changed message may wait. Returns the delays of these messages."""
        decisions, self._unpublished = self._unpublished, {}
        delays_s, left = [], DECISIONS_PER_SLICE
        for attempt_id, decision in decisions.items():
            published = self._published.get(attempt_id)
            if published is not None and published.decision.admitted == decision.admitted:
                if published.decision.message == decision.message:
                    self._published[attempt_id] = PublishedDecision(decision, published.at_s)
                    continue
                interval_s = _message_interval_s(published.decision.message, decision.message)
                if at_s < published.at_s + interval_s:
                    self._unpublished[attempt_id] = decision
                    delays_s.append(published.at_s + interval_s - at_s)
                    continue
            if left == 0:
                self._unpublished[attempt_id] = decision
                self._schedule_pass()
                continue
            left -= 1
            self._published[attempt_id] = PublishedDecision(decision, at_s)
            log.debug("verdict", key=str(attempt_id.key), admitted=decision.admitted, message=decision.message)
            self._add(attempt_id.key)
        return delays_s

    def _schedule_recheck(self, now: datetime, at_s: float, delays_s: list[float]) -> None:
        """For what no event reports: a message may be published, a patience ends, demand is not up to date."""
        if self._patience_ends is not None and self._queue.is_waiting:
            # One second more: by then the patience is over.
            delays_s.append((self._patience_ends - now).total_seconds() + 1.0)
        if self._queue.is_outdated:
            delays_s.append(self._passed_at_s + REFRESH_S - at_s)
        if self._recheck is not None:
            self._recheck.cancel()
        loop = asyncio.get_running_loop()
        self._recheck = loop.call_later(max(self._pause_s, min(delays_s)), self._look_again) if delays_s else None

    def _look_again(self) -> None:
        self._queue.touch()
        if self._next_pass is not None:
            self._next_pass.cancel()
        self._run_pass()


def _message_interval_s(old: str, new: str) -> float:
    return NUMBERS_INTERVAL_S if NUMBER.sub("", old) == NUMBER.sub("", new) else MESSAGE_INTERVAL_S
