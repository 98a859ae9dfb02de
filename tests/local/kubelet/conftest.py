"""Machines on both engines. On the real API server their nodes have no kubelet and no kwok: what runs there is ours."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NAMESPACES, NODES
from holdfast.local.apiserver.server import open_cluster
from holdfast.local.kubelet.kubelet import Kubelet
from tests.control_plane.server import ControlPlane
from tests.local.kubelet.bench import Bench, MakeBench

RESOURCES = {"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "4"}


def now() -> datetime:
    return datetime.now(UTC)


class Engine(Protocol):
    cluster: Cluster

    async def namespace(self) -> str: ...


class Kubernetes:
    def __init__(self, plane: ControlPlane) -> None:
        self.cluster: Cluster = connect(load_config(str(plane.kubeconfig)), rng=Random(1), now=now)
        self._plane = plane
        self._stack = AsyncExitStack()

    async def namespace(self) -> str:
        return await self._stack.enter_async_context(self._plane.namespace())


class Embedded:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def namespace(self) -> str:
        name = f"test-{secrets.token_hex(4)}"
        await self.cluster.create(NAMESPACES, {"metadata": {"name": name}})
        return name


@pytest.fixture(scope="session", params=["kubernetes", "embedded"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    made: Engine
    if request.param == "kubernetes":
        made = Kubernetes(request.getfixturevalue("control_plane"))
    else:
        made = Embedded(await open_cluster(None, now=now, rng=Random(1)))
    yield made
    await made.cluster.close()


@pytest.fixture
def cluster(engine: Engine) -> Cluster:
    return engine.cluster


@pytest.fixture
async def namespace(engine: Engine) -> str:
    return await engine.namespace()


@pytest.fixture
async def make_bench(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[MakeBench]:
    async with AsyncExitStack() as stack:
        node = f"machine-{secrets.token_hex(4)}"

        async def make(**more: Any) -> Bench:
            machine = Kubelet(cluster, name=node, data=tmp_path / "data", resources=RESOURCES, now=now, **more)
            await stack.enter_async_context(machine.running())
            return Bench(cluster, machine, namespace, node, tmp_path / "data")

        yield make
    await cluster.delete(NODES, Key("", node))


@pytest.fixture
async def bench(make_bench: MakeBench) -> Bench:
    return await make_bench()
