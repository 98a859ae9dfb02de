"""The embedded engine and the real API server side by side: the same operations make the same recording."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given

from tests.control_plane.server import ControlPlane

from .embedded_engine import embedded_engine
from .engine import Engine
from .kinds import GADGETS, definition, install
from .kubernetes_engine import kubernetes_engine
from .leaving import leave
from .operations import Operation, Recording, difference
from .replay import Replay
from .sequences import SEQUENCES, drawn


@pytest.fixture(scope="session")
async def both(control_plane: ControlPlane) -> AsyncIterator[tuple[Engine, Engine]]:
    """The embedded engine, and the real one."""
    async with embedded_engine() as embedded, kubernetes_engine(control_plane) as real:
        for engine in (embedded, real):
            await install(engine.cluster, GADGETS, definition(GADGETS))
        yield embedded, real


async def record(engine: Engine, operations: list[Operation]) -> Recording:
    namespace = await engine.namespace()
    recording = await Replay(engine.cluster, namespace).record(operations)
    await leave(engine.cluster, namespace)
    return recording


@drawn(15)
@given(operations=SEQUENCES)
async def test_the_embedded_engine_does_what_the_real_one_does(
    both: tuple[Engine, Engine], operations: list[Operation]
) -> None:
    embedded, real = await asyncio.gather(*(record(engine, operations) for engine in both))
    assert difference(operations, embedded, real) == ""
