"""The clusters that every command is tried on: a real API server, and the embedded engine behind its local API."""

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
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NAMESPACES, PODS
from holdfast.local.apiserver.http.app import serve
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.process import utc_now
from tests.cli.lab import CommandLab
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.operator.conftest import install_kinds

LINES = tuple(f"line {number}\n" for number in (1, 2, 3))


class EmbeddedCommandLab(CommandLab):
    """Nothing runs pods here: they run when the test says so."""

    async def node(self) -> str:
        return "a-node"

    async def run_pod(self, key: Key) -> None:
        await self.cluster.patch_status(PODS, key, {"status": {"phase": "Running"}})


@asynccontextmanager
async def embedded_lab(folder: Path) -> AsyncIterator[EmbeddedCommandLab]:
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
                yield EmbeddedCommandLab(client, kubeconfig, "trial")
            finally:
                await client.close()
    finally:
        await cluster.close()


class RealCommandLab(CommandLab):
    """A node is added with the first pod that needs one."""

    def __init__(self, cluster: Cluster, plane: ControlPlane, namespace: str) -> None:
        super().__init__(cluster, plane.kubeconfig, namespace)
        self._nodes = Nodes(plane.api)
        self._node = ""

    async def node(self) -> str:
        if not self._node:
            (self._node,) = await self._nodes.add(1)
        return self._node

    async def leave(self) -> None:
        await self._nodes.remove()


@asynccontextmanager
async def real_lab(plane: ControlPlane) -> AsyncIterator[CommandLab]:
    install_kinds(plane)
    client = connect(load_config(str(plane.kubeconfig)), rng=Random(0), now=utc_now)
    try:
        async with plane.namespace() as namespace:
            lab = RealCommandLab(client, plane, namespace)
            yield lab
            await lab.leave()
    finally:
        await client.close()


LABS: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[CommandLab]]] = {
    "kubernetes": lambda request: real_lab(request.getfixturevalue("control_plane")),
    "embedded": lambda request: embedded_lab(request.getfixturevalue("tmp_path")),
}


@pytest.fixture(params=LABS)
async def lab(request: pytest.FixtureRequest) -> AsyncIterator[CommandLab]:
    async with LABS[request.param](request) as lab:
        yield lab


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[CommandLab]:
    """For what can be seen there alone."""
    async with embedded_lab(tmp_path) as lab:
        yield lab


@pytest.fixture
def control_plane_stranger(control_plane: ControlPlane) -> Path:
    """The login of somebody who may do nothing."""
    return control_plane.user("a-stranger")
