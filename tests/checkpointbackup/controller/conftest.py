"""An operator for CheckpointBackups inside the test's own event loop, on every engine of the contract."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.cluster.protocol import Cluster
from holdfast.runtime.operator import Operator
from tests.checkpointbackup.controller.lab import BackupLab, backing_up
from tests.controllers.fixtures import cluster, engine, namespace, opening, operator_options, pool

__all__ = ["cluster", "engine", "namespace", "opening", "operator_options", "pool"]


@pytest.fixture
async def operator(
    cluster: Cluster, namespace: str, lab: BackupLab, operator_options: dict[str, Any]
) -> AsyncIterator[Operator]:
    """It looks after the test's namespace until the test ends."""
    async with backing_up(cluster, namespace, lab.requests, **operator_options) as operator:
        yield operator


@pytest.fixture
async def timed_operator(
    cluster: Cluster, namespace: str, lab: BackupLab, operator_options: dict[str, Any]
) -> AsyncIterator[Operator]:
    """One whose clocks the test sets."""
    now, clock = lab.clock.now, lab.clock.clock
    async with backing_up(cluster, namespace, lab.requests, now=now, clock=clock, **operator_options) as operator:
        yield operator


@pytest.fixture
def lab(cluster: Cluster, namespace: str) -> BackupLab:
    return BackupLab(cluster, namespace)
