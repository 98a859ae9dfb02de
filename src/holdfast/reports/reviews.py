"""Whose token a report carries, asked of the cluster once and then remembered for a while."""

import asyncio
import hashlib
from collections import OrderedDict
from datetime import datetime

from msgspec import Struct

from holdfast.cluster.protocol import Cluster, Identity
from holdfast.runtime.clocks import Now

KNOWN_FOR_S = 300.0
UNKNOWN_FOR_S = 10.0


class _Found(Struct, frozen=True):
    identity: Identity | None
    until_s: float


class TokenReviewCache:
    """Remembers at most `memory` tokens, by their digest; those that were not used for the longest time go first."""

    def __init__(self, cluster: Cluster, audience: str, *, now: Now, memory: int = 10_000) -> None:
        self._cluster = cluster
        self._audience = audience
        self._now = now
        self._memory = memory
        self._found: OrderedDict[bytes, _Found] = OrderedDict()

    def remembered(self, token: str) -> bool:
        """Whether an answer costs nothing."""
        found = self._found.get(_digest(token))
        return found is not None and _clock_s() < found.until_s

    def last_identity(self, token: str) -> Identity | None:
        """Who showed the token when it was reviewed last, however long ago."""
        found = self._found.get(_digest(token))
        return found.identity if found is not None else None

    async def identity(self, token: str) -> Identity | None:
        """None for a token that is not valid; raises a `ClusterError` when nobody can tell."""
        digest = _digest(token)
        found = self._found.get(digest)
        if found is None or _clock_s() >= found.until_s:
            identity = await self._cluster.review_token(token, self._audience)
            found = _Found(identity, _clock_s() + _valid_s(identity, self._now()))
        self._found[digest] = found
        self._found.move_to_end(digest)
        if len(self._found) > self._memory:
            self._found.popitem(last=False)
        return found.identity


def _valid_s(identity: Identity | None, now: datetime) -> float:
    if identity is None:
        return UNKNOWN_FOR_S
    if identity.expires_at is None:
        return KNOWN_FOR_S
    return min(KNOWN_FOR_S, (identity.expires_at - now).total_seconds())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
