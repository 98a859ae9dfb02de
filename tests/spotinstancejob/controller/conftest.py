"""An operator for SpotInstanceJobs inside the test's own event loop, on every engine of the contract."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from holdfast.cluster.protocol import Cluster
from holdfast.runtime.operator import Operator
from tests.contract.engine import Engine
from tests.contract.pods import POOL
from tests.controllers.fixtures import cluster, engine, namespace, opening, operator_options, pool
from tests.spotinstancejob.controller.lab import GPU, SpotLab, spot_jobs_run

__all__ = ["cluster", "engine", "namespace", "opening", "operator_options", "pool"]


@pytest.fixture
async def operator(
    engine: Engine, namespace: str, lab: SpotLab, operator_options: dict[str, Any]
) -> AsyncIterator[Operator]:
    """It looks after the test's namespace until the test ends."""
    add_node = partial(_add_node, engine, namespace)
    async with spot_jobs_run(lab, add_node, **operator_options) as operator:
        yield operator
    await lab.drop()


@pytest.fixture
def lab(cluster: Cluster, namespace: str) -> SpotLab:
    return SpotLab(cluster, namespace)


async def _add_node(engine: Engine, namespace: str, name: str, labels: dict[str, str]) -> None:
    room = {"cpu": "4", "memory": "15Gi", "pods": "110", GPU: "1"}
    await engine.add_node(name, resources=room, labels={POOL: namespace, **labels})
