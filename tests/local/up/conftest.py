"""A cluster of this machine alone, and the object stores that its jobs keep their checkpoints in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.local.host import Hardware
from holdfast.local.up import LocalCluster, local_cluster
from tests.checkpoints.conftest import azure_server, gcs_server, s3_server

__all__ = ["azure_server", "gcs_server", "s3_server"]

# Pretended: what a test runs at the same time is the test's own affair.
ROOMY = Hardware(cpus=64, memory_mib=64 * 1024, gpus=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster keeps everything."""
    return tmp_path_factory.mktemp("onebox")


@pytest.fixture(scope="module")
async def box(data: Path) -> AsyncIterator[LocalCluster]:
    async with local_cluster(data, ROOMY, limits=False) as box:
        yield box
