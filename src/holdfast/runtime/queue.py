"""The work queue between the events and the workers of a controller."""

import asyncio
from collections.abc import Hashable
from random import Random
from typing import Generic, TypeVar

# The backoff before a retry.


def backoff_s(failures: int, *, base_s: float, cap_s: float, random: Random) -> float:
    """A delay that doubles with every failure up to a cap; half of it is random, so that clients spread out."""
    doublings = min(max(failures - 1, 0), 62)  # every cap is reached long before 62; a float overflows at 1024
    return min(cap_s, base_s * 2.0**doublings) * random.uniform(0.5, 1.0)


K = TypeVar("K", bound=Hashable)

BASE_S = 0.1
CAP_S = 300.0


class Queue(Generic[K]):
    """Each key waits at most once, ready or delayed, and is never handed out twice at the same time.

    A key that is added during its reconcile comes again after `done`. An earlier time replaces a later time: the
    reconcile that runs then returns when it wants to run again.
    """

    def __init__(self, random: Random, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> None:
        self._random = random
        self._base_s = base_s
        self._cap_s = cap_s
        self._ready: dict[K, None] = {}  # an ordered set
        self._delayed: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def depth(self) -> int:
        """How many keys wait for a worker now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        self._drop_delay(key)
        if not self._closed:
            self._ready[key] = None
            self._changed.set()

    def add_after(self, key: K, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if seconds <= 0:
            self.add(key)
        elif not self._closed and key not in self._ready and due < self._due(key):
            self._drop_delay(key)
            self._delayed[key] = due, loop.call_at(due, self.add, key)

    def retry(self, key: K) -> float:
        """Add the key after a delay that grows with each failure in a row; returns the delay."""
        self._failures[key] = self.failures(key) + 1
        delay_s = backoff_s(self._failures[key], base_s=self._base_s, cap_s=self._cap_s, random=self._random)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """The key has succeeded: its next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> K | None:
        """The next key, to be given back with `done`; None once the queue is shut down."""
        while not self._closed:
            for key in self._ready:
                if key not in self._running:
                    del self._ready[key]
                    self._running.add(key)
                    return key
            self._changed.clear()
            await self._changed.wait()
        return None

    def done(self, key: K) -> None:
        self._running.discard(key)
        if key in self._ready:
            self._changed.set()

    def shut_down(self) -> None:
        """Hand out no more keys; running reconciles may finish."""
        self._closed = True
        self._ready.clear()
        for key in list(self._delayed):
            self._drop_delay(key)
        self._changed.set()

    def _due(self, key: K) -> float:
        return self._delayed[key][0] if key in self._delayed else float("inf")

    def _drop_delay(self, key: K) -> None:
        if key in self._delayed:
            self._delayed.pop(key)[1].cancel()
