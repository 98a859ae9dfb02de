"""The engines that the contract is held against, and what each of its tests gets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from holdfast.cluster.protocol import Cluster

from .embedded_engine import embedded_engine
from .engine import Engine
from .kinds import GADGETS, RELICS, definition, install
from .kubernetes_engine import kubernetes_engine
from .leaving import leave
from .pool import Pool
from .served_engine import served_engine
from .watching import Progress, progress_of_a_quiet_watch

Opening = AbstractAsyncContextManager[Engine]


def on(plane: str) -> Callable[[pytest.FixtureRequest], Opening]:
    """An engine over a control plane, named by its fixture: it starts with the first test that needs it."""
    return lambda request: kubernetes_engine(request.getfixturevalue(plane))


PLANES = {"kubernetes": "control_plane", "kubernetes-1.33": "old_control_plane"}
ENGINES = {name: on(plane) for name, plane in PLANES.items()}
ENGINES["embedded"] = lambda _: embedded_engine()
ENGINES["embedded-http"] = lambda _: served_engine()

# Every run tries these by the tests that are marked `every_engine`, and `make test-long` in full.
IN_PART = ("kubernetes-1.33", "embedded-http")
PARAMETERS = [pytest.param(name, marks=[pytest.mark.in_part] if name in IN_PART else []) for name in ENGINES]


@pytest.fixture(scope="session", params=PARAMETERS)
def opening(request: pytest.FixtureRequest) -> Opening:
    """The engine of this run, not yet open."""
    return ENGINES[request.param](request)


@pytest.fixture(scope="session")
async def engine(opening: Opening) -> AsyncIterator[Engine]:
    async with opening as engine:
        for custom in (GADGETS, RELICS):
            await install(engine.cluster, custom, definition(custom))
        yield engine


@pytest.fixture
def cluster(engine: Engine) -> Cluster:
    return engine.cluster


@pytest.fixture
async def namespace(engine: Engine, first_bookmark: asyncio.Task[Progress]) -> AsyncIterator[str]:
    """A namespace of the test's own; nobody waits until it is gone."""
    name = await engine.namespace()
    yield name
    await leave(engine.cluster, name)


@pytest.fixture
async def pool(engine: Engine, namespace: str) -> AsyncIterator[Pool]:
    """Machines of the test's own."""
    pool = Pool(engine, namespace)
    yield pool
    await pool.drop()


@pytest.fixture(scope="session")
async def first_bookmark(engine: Engine) -> AsyncIterator[asyncio.Task[Progress]]:
    """A watch of nothing, begun with the first namespace: bookmarks come about once a minute."""
    waiting = asyncio.create_task(progress_of_a_quiet_watch(engine.cluster))
    yield waiting
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Name the plane among a test's fixtures: the servers' logs are shown for those that it names."""
    callspec = getattr(item, "callspec", None)
    if isinstance(item, pytest.Function) and callspec and callspec.params.get("opening") in PLANES:
        # A list of its own: pytest gives the same one to every parametrization of a test.
        item.fixturenames = [*item.fixturenames, PLANES[callspec.params["opening"]]]
