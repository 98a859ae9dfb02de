"""An index of nodes by free GPUs: finds the best node, or a random one, with enough GPUs without a full scan."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeAlias

# The random source is an argument, so that the same seed makes the same choices.


class RandomSource(Protocol):
    """random.Random is one."""

    def randrange(self, stop: int, /) -> int: ...


# Whether a node fits in all respects that the index does not cover.
NodeFilter: TypeAlias = Callable[[str], bool]

# The most GPUs that a workload can request: nodes with more need not be distinguished where only enough counts.
MAX_GPUS = 64
# How many outdated entries a heap may hold, beyond twice the number of nodes.
SLACK = 64
# How many random samples are drawn before a full scan: where most nodes fit, one of the samples does.
RANDOM_SAMPLES = 16


class FreeGpuIndex:
    """A change costs O(log n), amortized, and so does a choice for each node that it rejects."""

    def __init__(self) -> None:
        self._free: dict[str, int] = {}
        # The most free first, then by name. An entry is valid only while `_free` holds the same number.
        self._heap: list[tuple[int, str]] = []
        # The nodes by number of free GPUs, unordered within a level, and the position of each node in its level.
        self._levels: list[list[str]] = [[] for _ in range(MAX_GPUS + 1)]
        self._positions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._free)

    def __contains__(self, name: str) -> bool:
        return name in self._free

    def free(self, name: str) -> int:
        """The free GPUs of the node; 0 if it is not in the index."""
        return self._free.get(name, 0)

    def put(self, name: str, free: int) -> None:
        """Set the free GPUs of the node."""
        free = max(0, free)
        old = self._free.get(name)
        if old == free:
            return
        if old is not None:
            self._remove_from_level(name, old)
        self._free[name] = free
        level = self._levels[min(free, MAX_GPUS)]
        self._positions[name] = len(level)
        level.append(name)
        heappush(self._heap, (-free, name))
        if len(self._heap) > 2 * len(self._free) + SLACK:
            self._heap = [(-free, name) for name, free in self._free.items()]
            heapify(self._heap)

    def remove(self, name: str) -> None:
        old = self._free.pop(name, None)
        if old is not None:
            self._remove_from_level(name, old)
            del self._positions[name]

    def most(self) -> int:
        """The most free GPUs of any node."""
        self._drop_outdated()
        return -self._heap[0][0] if self._heap else 0

    def count_with(self, gpus: int) -> int:
        """How many nodes have at least so many GPUs free."""
        return sum(map(len, self._levels[gpus:]))

    def most_free_node(self, gpus: int, suits: NodeFilter) -> str | None:
        """The fitting node with the most free GPUs, the first by name among equals."""
        rejected, found = [], None
        while self._drop_outdated() and -self._heap[0][0] >= gpus:
            if suits(self._heap[0][1]):
                found = self._heap[0][1]
                break
            rejected.append(heappop(self._heap))
        for entry in rejected:
            heappush(self._heap, entry)
        return found

    def random_node(self, gpus: int, suits: NodeFilter, rng: RandomSource) -> str | None:
        """A random fitting node with enough free GPUs, uniformly chosen."""
        count = self.count_with(gpus)
        for _ in range(min(count, RANDOM_SAMPLES)):
            name = self._at(rng.randrange(count), gpus)
            if suits(name):
                return name
        left = [name for level in self._levels[gpus:] for name in level if suits(name)]
        return left[rng.randrange(len(left))] if left else None

    def _drop_outdated(self) -> bool:
        """Drop outdated entries from the top of the heap; whether a valid entry is left."""
        while self._heap and self._free.get(self._heap[0][1]) != -self._heap[0][0]:
            heappop(self._heap)
        return bool(self._heap)

    def _remove_from_level(self, name: str, free: int) -> None:
        """Remove the node from its level; the last node of the level takes its position."""
        level, position = self._levels[min(free, MAX_GPUS)], self._positions[name]
        last = level.pop()
        if last != name:
            level[position] = last
            self._positions[last] = position

    def _at(self, offset: int, gpus: int) -> str:
        for level in self._levels[gpus:]:
            if offset < len(level):
                return level[offset]
            offset -= len(level)
        raise IndexError(offset)
