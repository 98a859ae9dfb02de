"""The grounds that every command is tried on: a real API server, and the embedded engine behind its local API."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import ServerError
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.resources import NAMESPACES, PODS
from holdfast.local.apiserver.http.app import serve
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.process import utc_now
from tests.cli.ground import Ground
from tests.control_plane.server import ControlPlane
from tests.operator.conftest import install_kinds

LINES = tuple(f"line {number}\n" for number in (1, 2, 3))


class EmbeddedGround(Ground):
    """Nothing runs pods here: they run when the test says so."""

    async def run_pod(self, key: Key) -> None:
        await self.cluster.patch_status(PODS, key, {"status": {"phase": "Running"}})


@asynccontextmanager
async def embedded_ground(folder: Path) -> AsyncIterator[EmbeddedGround]:
    async def said(key: Key, _container: str, tail_lines: int | None, _limit: int | None) -> bytes:
        if key.name.startswith("mute"):
            raise ServerError(f"read the log of pod {key}: its node has no address")
        return "".join(LINES if tail_lines is None else LINES[-tail_lines:]).encode()

    async def follow(key: Key, _container: str, _tail_lines: int | None) -> AsyncIterator[bytes]:
        for line in () if key.name.startswith("silent") else LINES:
            yield line.encode()
        if not key.name.startswith(("short", "silent")):
            await asyncio.Event().wait()

    cluster = await open_cluster(None, now=utc_now, rng=Random(0), pod_logs=said, follow_logs=follow)
    try:
        async with serve(cluster, folder, now=utc_now) as kubeconfig:
            client = connect(load_config(str(kubeconfig)), rng=Random(0), now=utc_now)
            try:
                await client.create(NAMESPACES, {"metadata": {"name": "trial"}})
                yield EmbeddedGround(client, kubeconfig, "trial", "a-node")
            finally:
                await client.close()
    finally:
        await cluster.close()


@asynccontextmanager
async def real_ground(plane: ControlPlane) -> AsyncIterator[Ground]:
    install_kinds(plane)
    client = connect(load_config(str(plane.kubeconfig)), rng=Random(0), now=utc_now)
    try:
        async with plane.namespace() as namespace:
            (node,) = await plane.nodes.add(1)
            yield Ground(client, plane.kubeconfig, namespace, node)
            await plane.nodes.remove(node)
    finally:
        await client.close()


GROUNDS: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Ground]]] = {
    "kubernetes": lambda request: real_ground(request.getfixturevalue("control_plane")),
    "embedded": lambda request: embedded_ground(request.getfixturevalue("tmp_path")),
}


@pytest.fixture(params=GROUNDS)
async def ground(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    async with GROUNDS[request.param](request) as ground:
        yield ground


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Ground]:
    """For what can be seen there alone."""
    async with embedded_ground(tmp_path) as ground:
        yield ground


@pytest.fixture
def control_plane_stranger(control_plane: ControlPlane) -> Path:
    """The login of somebody who may do nothing."""
    return control_plane.user("a-stranger")
