"""The operator inside the test's own event loop, on every engine of the contract."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.crd import definition
from holdfast.api.kinds import KINDS
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NAMESPACES
from holdfast.controllers.trainingjob import training_jobs
from holdfast.planning.trainingjob.timing import Timing
from holdfast.runtime.clocks import utc_now
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, Settings
from holdfast.workloads.trainingjob.defaults import Defaults
from tests.contract.conftest import ENGINES, Opening
from tests.contract.engine import Engine
from tests.contract.kinds import DEFINITIONS, established
from tests.contract.pool import Pool
from tests.contract.waiting import until
from tests.controllers.lab import Lab

DEFAULTS = Defaults(image="holdfast:test", holdfast_image="holdfast:test")
# Short where a test would only wait.
TIMING = Timing(retry_s=0.2, survivors_grace_s=1, stuck_s=1, explain_s=1)


@pytest.fixture(scope="session", params=("kubernetes", "embedded"))
def opening(request: pytest.FixtureRequest) -> Opening:
    """The engine of this run, not yet open."""
    return ENGINES[request.param](request)


@pytest.fixture(scope="session")
async def engine(opening: Opening) -> AsyncIterator[Engine]:
    """With our kinds on it."""
    async with opening as engine:
        for kind in KINDS:
            with suppress(AlreadyExists):
                await engine.cluster.create(DEFINITIONS, definition(kind))
            await until(engine.cluster, DEFINITIONS, Key("", str(kind)), established, "is established")
        yield engine


@pytest.fixture
def cluster(engine: Engine) -> Cluster:
    return engine.cluster


@pytest.fixture
async def namespace(engine: Engine) -> AsyncIterator[str]:
    name = await engine.namespace()
    yield name
    await engine.cluster.delete(NAMESPACES, Key("", name))


@pytest.fixture
async def pool(engine: Engine, namespace: str) -> AsyncIterator[Pool]:
    """Machines of the test's own."""
    pool = Pool(engine, namespace)
    yield pool
    await pool.drop()


@pytest.fixture
def defaults() -> Defaults:
    """What the operator's settings say where a job says nothing."""
    return DEFAULTS


@pytest.fixture
def operator_options() -> dict[str, Any]:
    """What a test wants to be different in the operator's timing."""
    return {}


@pytest.fixture
async def operator(
    cluster: Cluster, namespace: str, defaults: Defaults, operator_options: dict[str, Any]
) -> AsyncIterator[Operator]:
    """An operator that looks after the test's namespace until the test ends."""
    settings = Settings(namespaces=(namespace,), workers=4)
    operator = Operator(cluster, identity="test", now=utc_now, random=Random(0), metrics=Metrics(), settings=settings)
    operator.add(
        training_jobs(
            operator, cluster, defaults=defaults, now=utc_now, timing=structs.replace(TIMING, **operator_options)
        )
    )
    running = asyncio.create_task(operator.run())
    yield operator
    operator.stop()
    await running


@pytest.fixture
def lab(cluster: Cluster, namespace: str) -> Lab:
    return Lab(cluster, namespace)
