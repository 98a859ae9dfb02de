"""Gives machines to those who wait: one look after the other, as things change."""

from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct

from holdfast.scheduling.free_gpus import RandomSource
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.messages import MessageThrottle, WaitMessage, wait_message
from holdfast.scheduling.node_index import NodeIndex
from holdfast.scheduling.request import Request, SchedulingClass
from holdfast.scheduling.wait_queue import QueuedRequest, StarvationGuard, WaitQueue

# Indexes of sorts for which nobody waits: who comes next is most likely of one of these.
IDLE = 8
# To make an index is to go through all machines. So many are gone through in one look, then the next one goes on:
# meanwhile others must not stand still.
NODES_PER_PASS = 20_000


class Assignment(Struct, frozen=True):
    """A machine that somebody was given."""

    request: Request
    machine: str
    is_taken: bool = False
    """It is written down; until then it can be given back without a trace."""
    awaited: str = ""
    """What its pod needs next."""
    since_s: float = 0.0
    """Since when it needs that."""


class PassResult(Struct, frozen=True):
    given: list[Request]
    """Those who were given a machine, the most important first."""
    newly_waiting: list[Request]
    """Those who joined the line since the last look, and have to wait."""


class Placement:
    """Times are by a clock that never jumps. `assumed_s` is how long room is kept for who is not heard of again."""

    def __init__(self, ledger: Ledger, dice: RandomSource, *, assumed_s: float, patience_s: float) -> None:
        self.is_due = False
        """Something has changed since the last look."""
        self._ledger = ledger
        self._dice = dice
        self._assumed_s = assumed_s
        self._line = WaitQueue()
        self._patience = StarvationGuard(ledger, patience_s)
        self._telling = MessageThrottle()
        self._holdings: dict[str, Assignment] = {}
        # Those who joined since the last look: nobody can say yet what they wait for.
        self._new: dict[str, None] = {}
        self._indexes: dict[bytes, NodeIndex] = {}
        self._looked_at = 0
        ledger.listeners.append(self._changed)

    def enqueue(self, request: Request, now_s: float) -> None:
        """It waits, or goes on waiting; who was given a machine keeps it unless it asks for something else now."""
        held, waiter = self._holdings.get(request.uid), self._line.get(request.uid)
        has_machine = held is not None and not held.is_taken and held.request == request
        if has_machine or (waiter is not None and waiter.request == request):
            return
        self._give_back(request.uid)
        self._line.join(request, now_s)
        self._new[request.uid] = None
        self.is_due = True

    def confirm(self, request: Request, machine: str, now_s: float, awaited: str = "") -> float:
        """The choice is written down: its room is taken until its pod has it. How long that has waited for the same.

        To be said again with every look at the workload, and of every choice that is found written at the start.
        """
        self._line.leave(request.uid)
        self._telling.forget(request.uid)
        held = self._holdings.get(request.uid)
        if held is None or (held.is_taken, held.request.place, held.awaited) != (True, request.place, awaited):
            if held is not None and held.request.place != request.place:
                self._ledger.release(held.request.place)
            held = Assignment(request, machine, is_taken=True, awaited=awaited, since_s=now_s)
            self._holdings[request.uid] = held
        assumed = self._ledger.assumptions.get(request.place)
        if assumed is None or not now_s + self._assumed_s / 2 < assumed.until_s < inf:
            self._ledger.reserve(request.place, machine, request.shape.requests, now_s + self._assumed_s)
        return now_s - held.since_s

    def leave(self, uid: str) -> None:
        """It asks for nothing any more, or its pod has what it asked for."""
        self._line.leave(uid)
        self._telling.forget(uid)
        self._give_back(uid)

    def offered_node(self, uid: str) -> str | None:
        """What it was given and has not taken."""
        held = self._holdings.get(uid)
        return held.machine if held is not None and not held.is_taken else None

    def run_pass(self, now_s: float) -> PassResult:
        """Goes along the line once. One that does not fit lets those behind it pass, until it runs out of patience."""
        self._ledger.expire(now_s)
        self._looked_at = 0
        with self._patience.one_pass():
            given, goes_on = self._walk_queue(now_s)
        self.is_due = goes_on
        if goes_on:
            return PassResult(given, [])
        self._tidy()
        newly_waiting = [waiter.request for uid in self._new if (waiter := self._line.get(uid)) is not None]
        self._new.clear()
        return PassResult(given, newly_waiting)

    def wait(self, uid: str, now_s: float) -> tuple[WaitMessage, float] | None:
        """What it waits for, in words that change at most once a minute, and in how long to ask again.

        None for who does not wait, or was not looked at.
        """
        waiter = self._line.get(uid)
        if waiter is None or uid in self._new:
            return None
        index = self._index(waiter.sort)
        return self._telling.throttle(
            uid, wait_message(waiter.request, self._line.position(uid), index, self._ledger), now_s
        )

    def _walk_queue(self, now_s: float) -> tuple[list[Request], bool]:
        """Who is given a machine; and whether the line goes on with somebody who was not looked at."""
        given: list[Request] = []
        heads = [(waiter.request.rank, waiter.group) for waiter in self._line.group_heads()]
        heapify(heads)
        while heads:
            _, group = heappop(heads)
            waiter = self._line.first_of(group)
            assert waiter is not None
            if self._over_budget(waiter.sort):
                return given, True
            if not self._try_assign(waiter, now_s):
                continue
            given.append(waiter.request)
            following = self._line.first_of(group)
            if following is not None:
                heappush(heads, (following.request.rank, group))
        return given, False

    def _try_assign(self, waiter: QueuedRequest, now_s: float) -> bool:
        request, index = waiter.request, self._index(waiter.sort)
        machine = index.choose(request, self._dice)
        if machine is None:
            self._patience.reserve_if_starved(waiter, index, now_s)
            return False
        self._line.leave(request.uid)
        self._holdings[request.uid] = Assignment(request, machine)
        self._ledger.reserve(request.place, machine, request.shape.requests, inf)
        return True

    def _give_back(self, uid: str) -> None:
        held = self._holdings.pop(uid, None)
        if held is not None:
            self._ledger.release(held.request.place)

    def _index(self, sort: SchedulingClass) -> NodeIndex:
        """Built when the first of a sort asks; the one that was used last is at the end."""
        index = self._indexes.pop(sort.digest, None)
        if index is None:
            index = NodeIndex(sort, self._ledger)
            self._looked_at += len(self._ledger.machines)
        self._indexes[sort.digest] = index
        return index

    def _over_budget(self, sort: SchedulingClass) -> bool:
        return self._looked_at >= NODES_PER_PASS and sort.digest not in self._indexes

    def _changed(self, name: str) -> None:
        self.is_due = True
        for index in self._indexes.values():
            index.refresh(name)

    def _tidy(self) -> None:
        used = self._line.waiting_classes()
        idle = [digest for digest in self._indexes if digest not in used]
        for digest in idle[: max(0, len(idle) - IDLE)]:
            del self._indexes[digest]
