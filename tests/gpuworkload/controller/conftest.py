"""An operator for GPUWorkloads inside the test's own event loop, on every engine of the contract."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.cluster.protocol import Cluster
from holdfast.runtime.operator import Operator
from tests.controllers.fixtures import cluster, engine, namespace, opening, operator_options, pool
from tests.gpuworkload.controller.lab import GPUWorkloadLab, placing

__all__ = ["cluster", "engine", "namespace", "opening", "operator_options", "pool"]


@pytest.fixture
async def operator(
    cluster: Cluster, namespace: str, lab: GPUWorkloadLab, operator_options: dict[str, Any]
) -> AsyncIterator[Operator]:
    """It looks after the test's namespace until the test ends."""
    async with placing(cluster, namespace, **operator_options) as operator:
        lab.operator = operator
        yield operator


@pytest.fixture
def lab(cluster: Cluster, namespace: str) -> GPUWorkloadLab:
    return GPUWorkloadLab(cluster, namespace)
