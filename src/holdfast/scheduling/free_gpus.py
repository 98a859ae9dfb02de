"""Machines in the order of their free GPUs: the best, or any, of those with enough, without going through them all."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeAlias

# Where chance comes from: an argument, so that the same dice make the same choices.


class RandomSource(Protocol):
    """random.Random is one."""

    def randrange(self, stop: int, /) -> int: ...


# Whether a machine will do, as far as the shelf does not know.
NodeFilter: TypeAlias = Callable[[str], bool]

# More than this nobody can ask for: machines with more need not be told apart where only enough counts.
MOST = 64
# A heap may hold so many outdated entries beside as many again as there are machines.
SLACK = 64
# Where most machines will do, one of so many taken by chance will; else all are gone through.
TRIES = 16


class FreeGpuIndex:
    """A change costs O(log n), on the average over all changes, and so does a choice for each machine it turns down."""

    def __init__(self) -> None:
        self._free: dict[str, int] = {}
        # The most free first, then by name. An entry is only good while `_free` says the same.
        self._heap: list[tuple[int, str]] = []
        # The machines with so many free, in no order, and where each of them stands.
        self._levels: list[list[str]] = [[] for _ in range(MOST + 1)]
        self._spots: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._free)

    def __contains__(self, name: str) -> bool:
        return name in self._free

    def free(self, name: str) -> int:
        """How many that machine has free; none if it is not here."""
        return self._free.get(name, 0)

    def put(self, name: str, free: int) -> None:
        """The machine has so many free now."""
        free = max(0, free)
        old = self._free.get(name)
        if old == free:
            return
        if old is not None:
            self._unlevel(name, old)
        self._free[name] = free
        level = self._levels[min(free, MOST)]
        self._spots[name] = len(level)
        level.append(name)
        heappush(self._heap, (-free, name))
        if len(self._heap) > 2 * len(self._free) + SLACK:
            self._heap = [(-free, name) for name, free in self._free.items()]
            heapify(self._heap)

    def remove(self, name: str) -> None:
        old = self._free.pop(name, None)
        if old is not None:
            self._unlevel(name, old)
            del self._spots[name]

    def most(self) -> int:
        """The most that any of them has free."""
        self._clean()
        return -self._heap[0][0] if self._heap else 0

    def count_with(self, gpus: int) -> int:
        """How many have so many free."""
        return sum(map(len, self._levels[gpus:]))

    def most_free_node(self, gpus: int, suits: NodeFilter) -> str | None:
        """The one with the most free that will do, the first by name among equals."""
        aside, found = [], None
        while self._clean() and -self._heap[0][0] >= gpus:
            if suits(self._heap[0][1]):
                found = self._heap[0][1]
                break
            aside.append(heappop(self._heap))
        for entry in aside:
            heappush(self._heap, entry)
        return found

    def random_node(self, gpus: int, suits: NodeFilter, dice: RandomSource) -> str | None:
        """One of those with enough that will do, each as likely as the others."""
        count = self.count_with(gpus)
        for _ in range(min(count, TRIES)):
            name = self._at(dice.randrange(count), gpus)
            if suits(name):
                return name
        left = [name for level in self._levels[gpus:] for name in level if suits(name)]
        return left[dice.randrange(len(left))] if left else None

    def _clean(self) -> bool:
        """Whether there is anything on it; the first entry is a good one then."""
        while self._heap and self._free.get(self._heap[0][1]) != -self._heap[0][0]:
            heappop(self._heap)
        return bool(self._heap)

    def _unlevel(self, name: str, free: int) -> None:
        """The last of its level takes its spot."""
        level, spot = self._levels[min(free, MOST)], self._spots[name]
        last = level.pop()
        if last != name:
            level[spot] = last
            self._spots[last] = spot

    def _at(self, turn: int, gpus: int) -> str:
        for level in self._levels[gpus:]:
            if turn < len(level):
                return level[turn]
            turn -= len(level)
        raise IndexError(turn)
