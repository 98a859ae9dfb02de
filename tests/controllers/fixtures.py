"""What the tests of every controller get: an engine of the contract with our kinds, and a namespace on it.

The conftest.py of a kind imports the fixtures, and adds its lab and its operator.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from holdfast.api.kinds import KINDS
from holdfast.api.meta import Key
from holdfast.api.schema.crd import crd_manifest
from holdfast.cluster.errors import AlreadyExists
from holdfast.cluster.protocol import Cluster
from tests.contract.conftest import ENGINES, Opening
from tests.contract.engine import Engine
from tests.contract.kinds import DEFINITIONS, established
from tests.contract.leaving import leave
from tests.contract.pool import Pool
from tests.contract.waiting import until

__all__ = ["cluster", "engine", "namespace", "opening", "operator_options", "pool"]


# On the real API server every run tries what it alone can show: the tests that are marked `every_engine`.
@pytest.fixture(scope="session", params=(pytest.param("kubernetes", marks=pytest.mark.in_part), "embedded"))
def opening(request: pytest.FixtureRequest) -> Opening:
    """The engine of this run, not yet open."""
    return ENGINES[request.param](request)


@pytest.fixture(scope="session")
async def engine(opening: Opening) -> AsyncIterator[Engine]:
    """With our kinds on it."""
    async with opening as engine:
        for kind in KINDS:
            with suppress(AlreadyExists):
                await engine.cluster.create(DEFINITIONS, crd_manifest(kind))
            await until(engine.cluster, DEFINITIONS, Key("", str(kind)), established, "is established")
        yield engine


@pytest.fixture
def cluster(engine: Engine) -> Cluster:
    return engine.cluster


@pytest.fixture
async def namespace(engine: Engine) -> AsyncIterator[str]:
    name = await engine.namespace()
    yield name
    await leave(engine.cluster, name)


@pytest.fixture
async def pool(engine: Engine, namespace: str) -> AsyncIterator[Pool]:
    """Machines of the test's own."""
    pool = Pool(engine, namespace)
    yield pool
    await pool.drop()


@pytest.fixture
def operator_options() -> dict[str, Any]:
    """What a test wants to be different in the operator's timing."""
    return {}
