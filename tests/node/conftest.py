"""A node's lab on a cluster in memory, with Debian's registry."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from holdfast.cluster.resources import NAMESPACES
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from tests.checkpoints.images.conftest import registry_server
from tests.checkpoints.images.registries import RunningRegistry
from tests.node.lab import AgentLab

__all__ = ["registry_server"]


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    cluster = await open_cluster(None, now=lambda: datetime.now(UTC), rng=Random(7))
    yield cluster
    await cluster.close()


@pytest.fixture
async def lab(cluster: EmbeddedCluster, registry_server: RunningRegistry, tmp_path: Path) -> AsyncIterator[AgentLab]:
    await cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    lab = AgentLab(cluster, registry_server, tmp_path, "team")
    async with lab.kubelet_serving():
        yield lab
