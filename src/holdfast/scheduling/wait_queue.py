"""The queue of waiting workloads, by priority and then by age."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.node_index import NodeIndex
from holdfast.scheduling.request import Request, SchedulingClass, gpus_in, scheduling_class_of

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

    def __init__(self, ledger: Ledger, patience_s: float) -> None:
        self._ledger = ledger
        self._patience_s = patience_s
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
        if now_s - waiter.since_s < self._patience_s:
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
