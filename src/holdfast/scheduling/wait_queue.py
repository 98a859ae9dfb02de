"""Those who wait, by importance and then by age."""

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
    sort: SchedulingClass
    since_s: float
    """When it joined the line, by a clock that never jumps."""

    @property
    def group(self) -> Group:
        """Where the first of a group does not fit, none of it does."""
        return self.sort.digest, self.request.shape.digest


class WaitQueue:
    """Who joins, leaves or asks for its position costs as little in a line of thousands as in a short one."""

    def __init__(self) -> None:
        self._waiters: dict[str, QueuedRequest] = {}
        self._ranks: list[Rank] = []
        self._groups: defaultdict[Group, list[tuple[Rank, str]]] = defaultdict(list)

    def get(self, uid: str) -> QueuedRequest | None:
        return self._waiters.get(uid)

    def join(self, request: Request, now_s: float) -> None:
        """Take a place; who asks for something else than before still has waited since then."""
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
        """From 1."""
        return bisect_left(self._ranks, self._waiters[uid].request.rank) + 1

    def group_heads(self) -> Iterator[QueuedRequest]:
        """The first of each group."""
        for group in self._groups.values():
            yield self._waiters[group[0][1]]

    def first_of(self, group: Group) -> QueuedRequest | None:
        found = self._groups.get(group)
        return self._waiters[found[0][1]] if found else None

    def waiting_classes(self) -> set[bytes]:
        """The digests of all sorts that wait."""
        return {digest for digest, _ in self._groups}


# Who has waited too long gets a machine kept: those behind it in the line no longer pass it there.
#
# Without that, a workload that needs all GPUs of a machine would wait for ever while small ones come and go.


class StarvationGuard:
    """Kept is only from those behind: each look goes along the line anew, and ends with nothing kept."""

    def __init__(self, ledger: Ledger, patience_s: float) -> None:
        self._ledger = ledger
        self._patience_s = patience_s
        self._kept: dict[str, str] = {}
        self._now: dict[str, str] = {}

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        self._now = {}
        try:
            yield
        finally:
            for uid in self._now:
                self._ledger.release(_place(uid))
            self._kept = self._now

    def reserve_if_starved(self, waiter: QueuedRequest, index: NodeIndex, now_s: float) -> None:
        """It does not fit. Once its patience is over, a machine is kept from all who come after it in this look."""
        uid, asked = waiter.request.uid, waiter.request.shape.requests
        if now_s - waiter.since_s < self._patience_s:
            return
        machine = self._machine(waiter, index)
        if machine is not None:
            self._now[uid] = machine
            self._ledger.reserve(_place(uid), machine, asked, inf)

    def _machine(self, waiter: QueuedRequest, index: NodeIndex) -> str | None:
        """The same as before, so that it empties; else the one that lacks the least."""
        request = waiter.request
        if index.schedulable.most() < request.gpus:
            return None

        def will_do(name: str) -> bool:
            return name in index.schedulable and index.is_large_enough(request, name)

        before = self._kept.get(request.uid)
        if before is not None and will_do(before):
            return before
        fitting = filter(will_do, self._ledger.machines)
        return min(fitting, key=lambda name: (-gpus_in(self._ledger.available(name)), name), default=None)


def _place(uid: str) -> str:
    return f"kept for {uid}"
