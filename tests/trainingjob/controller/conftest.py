"""The operator inside the test's own event loop, on every engine of the contract."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from holdfast.api.kinds import KINDS
from holdfast.api.meta import Key
from holdfast.api.schema.crd import crd_manifest
from holdfast.cluster.errors import AlreadyExists
from holdfast.cluster.protocol import Cluster
from holdfast.pods.template import Defaults
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.reports.server import ReportReceiver
from tests.contract.conftest import ENGINES, Opening
from tests.contract.engine import Engine
from tests.contract.kinds import DEFINITIONS, established
from tests.contract.leaving import leave
from tests.contract.pool import Pool
from tests.contract.waiting import until
from tests.trainingjob.controller.lab import Lab
from tests.trainingjob.controller.operating import DEFAULTS, operating
from tests.trainingjob.controller.sidecars import Sidecars


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
    async with operating(cluster, namespace, defaults=defaults, **operator_options) as operator:
        yield operator


@pytest.fixture
async def operator_with_office(
    cluster: Cluster, namespace: str, defaults: Defaults, operator_options: dict[str, Any]
) -> AsyncIterator[tuple[Operator, ReportReceiver]]:
    """Such an operator, which takes reports as well."""
    office = ReportReceiver(now=utc_now)
    async with operating(cluster, namespace, defaults=defaults, office=office, **operator_options) as operator:
        yield operator, office


@pytest.fixture
def office(operator_with_office: tuple[Operator, ReportReceiver]) -> ReportReceiver:
    return operator_with_office[1]


@pytest.fixture
async def sidecars(lab: Lab, engine: Engine) -> AsyncIterator[Sidecars]:
    async with Sidecars.playing(lab, engine) as sidecars:
        yield sidecars


@pytest.fixture
def lab(cluster: Cluster, namespace: str) -> Lab:
    return Lab(cluster, namespace)
