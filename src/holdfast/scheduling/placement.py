"""The queue of waiting workloads. Nodes are assigned in passes over the queue as nodes and workloads change."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.scheduling.constraints import Request, SchedulingClass, gpus_in, scheduling_class_of
from holdfast.scheduling.free_gpus import RandomSource
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.messages import MessageThrottle, WaitMessage, wait_message
from holdfast.scheduling.node_index import NodeIndex

# The queue of waiting workloads, by priority and then by age.


Rank: TypeAlias = tuple[int, str, Key]
Group: TypeAlias = tuple[bytes, bytes]


class QueuedRequest(Struct, frozen=True):
    request: Request
    scheduling_class: SchedulingClass
    since_s: float
    """When the request joined the queue, by a monotonic clock."""

    @property
    def group(self) -> Group:
        """Requests that fit alike: if the first request of a group does not fit, no other one does."""
        return self.scheduling_class.digest, self.request.shape.digest


class WaitQueue:
    """Joining, leaving and asking for the position stay cheap in a queue of thousands."""

    def __init__(self) -> None:
        self._waiters: dict[str, QueuedRequest] = {}
        self._ranks: list[Rank] = []
        self._groups: defaultdict[Group, list[tuple[Rank, str]]] = defaultdict(list)

    def get(self, uid: str) -> QueuedRequest | None:
        return self._waiters.get(uid)

    def join(self, request: Request, now_s: float) -> None:
        """Add or replace the request; a changed request keeps the time since when its workload waits."""
        before = self.leave(request.uid)
        waiter = QueuedRequest(request, scheduling_class_of(request), before.since_s if before is not None else now_s)
        self._waiters[request.uid] = waiter
        insort(self._ranks, request.rank)
        insort(self._groups[waiter.group], (request.rank, request.uid))

    def leave(self, uid: str) -> QueuedRequest | None:
        waiter = self._waiters.pop(uid, None)
        if waiter is None:
            return None
        rank = waiter.request.rank
        del self._ranks[bisect_left(self._ranks, rank)]
        group = self._groups[waiter.group]
        del group[bisect_left(group, (rank, uid))]
        if not group:
            del self._groups[waiter.group]
        return waiter

    def position(self, uid: str) -> int:
        """The queue position, from 1."""
        return bisect_left(self._ranks, self._waiters[uid].request.rank) + 1

    def group_heads(self) -> Iterator[QueuedRequest]:
        """The first request of each group."""
        for group in self._groups.values():
            yield self._waiters[group[0][1]]

    def first_of(self, group: Group) -> QueuedRequest | None:
        found = self._groups.get(group)
        return self._waiters[found[0][1]] if found else None

    def waiting_classes(self) -> set[bytes]:
        """The digests of all scheduling classes that wait."""
        return {digest for digest, _ in self._groups}


# A workload that has waited too long gets a node reserved: workloads behind it in the queue no longer pass it there.
#
# Without the reservation, a workload that needs all GPUs of a node would wait for ever while small ones come and go.


class StarvationGuard:
    """Reserves only against requests behind: each pass walks the queue anew, and ends without reservations."""

    def __init__(self, ledger: Ledger, starvation_timeout_s: float) -> None:
        self._ledger = ledger
        self._starvation_timeout_s = starvation_timeout_s
        self._last_reserved: dict[str, str] = {}
        self._reserved: dict[str, str] = {}

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        self._reserved = {}
        try:
            yield
        finally:
            for uid in self._reserved:
                self._ledger.release(_reservation_id(uid))
            self._last_reserved = self._reserved

    def reserve_if_starved(self, waiter: QueuedRequest, index: NodeIndex, now_s: float) -> None:
        """For a request that does not fit: after its patience, reserve a node against later requests of this pass."""
        uid, requests = waiter.request.uid, waiter.request.shape.requests
        if now_s - waiter.since_s < self._starvation_timeout_s:
            return
        node = self._choose_node(waiter, index)
        if node is not None:
            self._reserved[uid] = node
            self._ledger.reserve(_reservation_id(uid), node, requests, inf)

    def _choose_node(self, waiter: QueuedRequest, index: NodeIndex) -> str | None:
        """The node of the last pass, so that it drains; else the fitting node with the most free GPUs."""
        request = waiter.request
        if index.schedulable.most() < request.gpus:
            return None

        def can_fit(name: str) -> bool:
            return name in index.schedulable and index.is_large_enough(request, name)

        before = self._last_reserved.get(request.uid)
        if before is not None and can_fit(before):
            return before
        fitting = filter(can_fit, self._ledger.nodes)
        return min(fitting, key=lambda name: (-gpus_in(self._ledger.available(name)), name), default=None)


def _reservation_id(uid: str) -> str:
    return f"kept for {uid}"


# How many indexes of classes without waiting workloads are retained: the next workload most likely is of such a class.
MAX_IDLE_INDEXES = 8
# To build an index is to scan all nodes. A pass scans at most so many nodes, then the next pass continues: other tasks
# must not stall meanwhile.
NODES_PER_PASS = 20_000


class Assignment(Struct, frozen=True):
    """A node that was assigned to a request."""

    request: Request
    node: str
    is_confirmed: bool = False
    """The assignment is persisted; until then it can be released without a trace."""
    awaited: str = ""
    """What the pod needs next."""
    since_s: float = 0.0
    """Since when the pod needs that."""


class PassResult(Struct, frozen=True):
    assigned: list[Request]
    """The requests that were assigned a node, by priority."""
    newly_waiting: list[Request]
    """The requests that joined the queue since the last pass, and have to wait."""


class Placement:
    """Times are by a monotonic clock. A reservation that is not confirmed again lasts `reservation_timeout_s`."""

    def __init__(
        self, ledger: Ledger, rng: RandomSource, *, reservation_timeout_s: float, starvation_timeout_s: float
    ) -> None:
        self.is_due = False
        """A node or a request has changed since the last pass."""
        self._ledger = ledger
        self._rng = rng
        self._reservation_timeout_s = reservation_timeout_s
        self._queue = WaitQueue()
        self._starvation_guard = StarvationGuard(ledger, starvation_timeout_s)
        self._throttle = MessageThrottle()
        self._assignments: dict[str, Assignment] = {}
        # Requests that joined since the last pass: what they wait for is not known yet.
        self._unprocessed: dict[str, None] = {}
        self._indexes: dict[bytes, NodeIndex] = {}
        self._scanned_nodes = 0
        ledger.listeners.append(self._changed)

    def enqueue(self, request: Request, now_s: float) -> None:
        """Queue the request, if it is not queued already. An assigned node is retained if the request is the same."""
        assignment, waiter = self._assignments.get(request.uid), self._queue.get(request.uid)
        has_node = assignment is not None and not assignment.is_confirmed and assignment.request == request
        if has_node or (waiter is not None and waiter.request == request):
            return
        self._release(request.uid)
        self._queue.join(request, now_s)
        self._unprocessed[request.uid] = None
        self.is_due = True

    def confirm(self, request: Request, node: str, now_s: float, awaited: str = "") -> float:
        """The assignment is persisted: reserve its capacity until the pod is bound. Returns the age of `awaited`.

        To be called with every reconcile of the workload, and for every persisted assignment found at the start.
        """
        self._queue.leave(request.uid)
        self._throttle.forget(request.uid)
        prior = self._assignments.get(request.uid)
        if prior is None or (prior.is_confirmed, prior.request.reservation_id, prior.awaited) != (
            True,
            request.reservation_id,
            awaited,
        ):
            if prior is not None and prior.request.reservation_id != request.reservation_id:
                self._ledger.release(prior.request.reservation_id)
            prior = Assignment(request, node, is_confirmed=True, awaited=awaited, since_s=now_s)
            self._assignments[request.uid] = prior
        reservation = self._ledger.reservations.get(request.reservation_id)
        if reservation is None or not now_s + self._reservation_timeout_s / 2 < reservation.until_s < inf:
            self._ledger.reserve(
                request.reservation_id, node, request.shape.requests, now_s + self._reservation_timeout_s
            )
        return now_s - prior.since_s

    def leave(self, uid: str) -> None:
        """The workload requests nothing any more, or its pod is bound."""
        self._queue.leave(uid)
        self._throttle.forget(uid)
        self._release(uid)

    def offered_node(self, uid: str) -> str | None:
        """The assigned node that is not confirmed yet."""
        assignment = self._assignments.get(uid)
        return assignment.node if assignment is not None and not assignment.is_confirmed else None

    def run_pass(self, now_s: float) -> PassResult:
        """Walk the queue once. A request that does not fit lets later ones pass, until its patience is over."""
        self._ledger.expire(now_s)
        self._ledger.update_gang_demand()
        self._scanned_nodes = 0
        with self._starvation_guard.one_pass():
            given, unfinished = self._walk_queue(now_s)
        self.is_due = unfinished
        if unfinished:
            return PassResult(given, [])
        self._drop_idle_indexes()
        newly_waiting = [waiter.request for uid in self._unprocessed if (waiter := self._queue.get(uid)) is not None]
        self._unprocessed.clear()
        return PassResult(given, newly_waiting)

    def wait(self, uid: str, now_s: float) -> tuple[WaitMessage, float] | None:
        """What the workload waits for, in a message that changes at most once a minute, and in how long to ask again.

        None for a workload that does not wait, or was not in a pass yet.
        """
        waiter = self._queue.get(uid)
        if waiter is None or uid in self._unprocessed:
            return None
        index = self._index(waiter.scheduling_class)
        return self._throttle.throttle(
            uid, wait_message(waiter.request, self._queue.position(uid), index, self._ledger), now_s
        )

    def _walk_queue(self, now_s: float) -> tuple[list[Request], bool]:
        """The requests that were assigned a node; and whether a part of the queue is left for the next pass."""
        given: list[Request] = []
        heads = [(waiter.request.rank, waiter.group) for waiter in self._queue.group_heads()]
        heapify(heads)
        while heads:
            _, group = heappop(heads)
            waiter = self._queue.first_of(group)
            assert waiter is not None
            if self._over_budget(waiter.scheduling_class):
                return given, True
            if not self._try_assign(waiter, now_s):
                continue
            given.append(waiter.request)
            following = self._queue.first_of(group)
            if following is not None:
                heappush(heads, (following.request.rank, group))
        return given, False

    def _try_assign(self, waiter: QueuedRequest, now_s: float) -> bool:
        request, index = waiter.request, self._index(waiter.scheduling_class)
        node = index.choose(request, self._rng)
        if node is None:
            self._starvation_guard.reserve_if_starved(waiter, index, now_s)
            return False
        self._queue.leave(request.uid)
        self._assignments[request.uid] = Assignment(request, node)
        self._ledger.reserve(request.reservation_id, node, request.shape.requests, inf)
        return True

    def _release(self, uid: str) -> None:
        assignment = self._assignments.pop(uid, None)
        if assignment is not None:
            self._ledger.release(assignment.request.reservation_id)

    def _index(self, scheduling_class: SchedulingClass) -> NodeIndex:
        """The index of the class, built on first use; the index that was used last is at the end."""
        index = self._indexes.pop(scheduling_class.digest, None)
        if index is None:
            index = NodeIndex(scheduling_class, self._ledger)
            self._scanned_nodes += len(self._ledger.nodes)
        self._indexes[scheduling_class.digest] = index
        return index

    def _over_budget(self, scheduling_class: SchedulingClass) -> bool:
        return self._scanned_nodes >= NODES_PER_PASS and scheduling_class.digest not in self._indexes

    def _changed(self, name: str) -> None:
        self.is_due = True
        for index in self._indexes.values():
            index.refresh(name)

    def _drop_idle_indexes(self) -> None:
        used = self._queue.waiting_classes()
        idle = [digest for digest in self._indexes if digest not in used]
        for digest in idle[: max(0, len(idle) - MAX_IDLE_INDEXES)]:
            del self._indexes[digest]
