"""An embedded cluster in memory, and the clock that it reads."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster

from .clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cluster(clock: Clock) -> AsyncIterator[EmbeddedCluster]:
    cluster = await open_cluster(None, now=clock, rng=Random(7))
    yield cluster
    await cluster.close()
