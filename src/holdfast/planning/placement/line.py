"""Those who wait, by importance and then by age."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.planning.placement.request import Request, SchedulingClass, scheduling_class_of

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
