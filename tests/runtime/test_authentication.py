"""Whose token that is, asked as seldom as is safe."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from holdfast.cluster.errors import Unreachable
from holdfast.cluster.protocol import Identity
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.runtime.authentication import KNOWN_FOR_S, UNKNOWN_FOR_S, TokenReviewCache
from holdfast.runtime.process import utc_now
from tests.runtime.virtual import virtual

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Registrar(EmbeddedCluster):
    """Knows the tokens that it is told of, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(None, now=utc_now, rng=Random(0))
        self.known: dict[str, datetime | None] = {}
        self.asked: list[str] = []
        self.away = False

    async def review_token(self, token: str, audience: str) -> Identity | None:
        self.asked.append(token)
        if self.away:
            raise Unreachable("review a token: no answer")
        if audience != "here" or token not in self.known:
            return None
        return Identity(username=token, expires_at=self.known[token])


def reviews(registrar: Registrar, memory: int = 100) -> TokenReviewCache:
    return TokenReviewCache(registrar, "here", now=lambda: NOW, memory=memory)


@virtual
async def test_a_token_is_reviewed_once_and_again_after_five_minutes() -> None:
    registrar = Registrar()
    registrar.known["a"] = None
    desk = reviews(registrar)
    assert not desk.is_cached("a")
    for _ in range(3):
        assert await desk.identity("a") == Identity(username="a")
    assert desk.is_cached("a")
    await asyncio.sleep(KNOWN_FOR_S - 1)
    await desk.identity("a")
    assert registrar.asked == ["a"]
    await asyncio.sleep(1)
    assert not desk.is_cached("a")
    del registrar.known["a"]
    assert await desk.identity("a") is None
    await registrar.close()


@virtual
async def test_a_token_is_not_remembered_beyond_its_end() -> None:
    registrar = Registrar()
    registrar.known["a"] = NOW + timedelta(seconds=30)
    registrar.known["b"] = NOW - timedelta(seconds=1)
    desk = reviews(registrar)
    await desk.identity("a")
    await asyncio.sleep(29)
    assert desk.is_cached("a")
    await asyncio.sleep(1)
    assert not desk.is_cached("a")
    await desk.identity("b")
    assert not desk.is_cached("b")
    await registrar.close()


@virtual
async def test_a_no_is_remembered_for_ten_seconds() -> None:
    registrar = Registrar()
    desk = reviews(registrar)
    assert await desk.identity("a") is None
    registrar.known["a"] = None
    await asyncio.sleep(UNKNOWN_FOR_S - 1)
    assert await desk.identity("a") is None
    await asyncio.sleep(1)
    assert await desk.identity("a") is not None
    await registrar.close()


@virtual
async def test_a_review_that_failed_is_not_remembered() -> None:
    registrar = Registrar()
    registrar.known["a"], registrar.away = None, True
    desk = reviews(registrar)
    with pytest.raises(Unreachable):
        await desk.identity("a")
    registrar.away = False
    assert await desk.identity("a") is not None
    await registrar.close()


@virtual
async def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    registrar = Registrar()
    registrar.known.update(dict.fromkeys("abc"))
    desk = reviews(registrar, memory=2)
    for token in "abac":
        await desk.identity(token)
    assert [desk.is_cached(token) for token in "abc"] == [True, False, True]
    await registrar.close()
