"""Token buckets: a burst is let through, then a trickle."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Bucket(NamedTuple):
    tokens: float
    at_s: float


class RateLimiter(Generic[K]):
    """A bucket for each of the last `memory` keys; it starts full and regains one token every `refill_s`."""

    def __init__(self, *, burst: int, refill_s: float, memory: int) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._memory = memory
        self._buckets: OrderedDict[K, Bucket] = OrderedDict()

    def take(self, key: K, now_s: float) -> bool:
        """Take a token if there is one."""
        tokens, at_s = self._buckets.get(key, Bucket(self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - at_s) / self._refill_s)
        allowed = tokens >= 1
        self._buckets[key] = Bucket(tokens - 1 if allowed else tokens, now_s)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._memory:
            self._buckets.popitem(last=False)
        return allowed
