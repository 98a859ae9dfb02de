"""An index of nodes by how many workers of one shape fit there, from the node with the most room on."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from heapq import merge
from itertools import islice


class OpenNodes:
    """The nodes with room; equal ones by name."""

    def __init__(self, levels: Mapping[int, list[str]] | None = None) -> None:
        self._levels = dict(levels or {})
        self._counts = {name: count for count, level in self._levels.items() for name in level}
        self.total = sum(count * len(level) for count, level in self._levels.items())

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, name: str) -> bool:
        return name in self._counts

    def put(self, name: str, count: int) -> None:
        old = self._counts.pop(name, 0)
        self.total += count - old
        if count:
            self._counts[name] = count
        if old == count:
            return
        if old:
            level = self._levels[old]
            del level[bisect_left(level, name)]
            if not level:
                del self._levels[old]
        if count:
            insort(self._levels.setdefault(count, []), name)

    def by_capacity(self) -> Iterator[tuple[str, int]]:
        for count in sorted(self._levels, reverse=True):
            for name in self._levels[count]:
                yield name, count

    def most_free(self, workers: int) -> Counter[str]:
        """How many workers each node gets, when each worker goes to the node with the most room at its turn."""
        chosen: Counter[str] = Counter()
        turn: list[str] = []
        for count in range(max(self._levels, default=0), 0, -1):
            turn = list(islice(merge(turn, self._levels.get(count, ())), workers))
            chosen.update(turn)
            workers -= len(turn)
            if not workers:
                break
        return chosen

    def without(self, names: Container[str]) -> "OpenNodes":
        left = {count: [name for name in level if name not in names] for count, level in self._levels.items()}
        return OpenNodes({count: level for count, level in left.items() if level})
