"""The operator inside the test's own event loop, on every engine of the contract."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.cluster.protocol import Cluster
from holdfast.pods.template import Defaults
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.reports.receiver import ReportReceiver
from tests.contract.engine import Engine
from tests.controllers.fixtures import cluster, engine, namespace, opening, operator_options, pool
from tests.controllers.operating import DEFAULTS
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjob.controller.operating import operating
from tests.trainingjob.controller.sidecars import Sidecars

__all__ = ["cluster", "engine", "namespace", "opening", "operator_options", "pool"]


@pytest.fixture
def defaults() -> Defaults:
    """What the operator's settings say where a job says nothing."""
    return DEFAULTS


@pytest.fixture
async def operator(
    cluster: Cluster, namespace: str, defaults: Defaults, operator_options: dict[str, Any]
) -> AsyncIterator[Operator]:
    """An operator that looks after the test's namespace until the test ends."""
    async with operating(cluster, namespace, defaults=defaults, **operator_options) as operator:
        yield operator


@pytest.fixture
async def operator_with_office(
    cluster: Cluster, namespace: str, defaults: Defaults, operator_options: dict[str, Any]
) -> AsyncIterator[tuple[Operator, ReportReceiver]]:
    """Such an operator, which takes reports as well."""
    office = ReportReceiver(now=utc_now)
    async with operating(cluster, namespace, defaults=defaults, office=office, **operator_options) as operator:
        yield operator, office


@pytest.fixture
def office(operator_with_office: tuple[Operator, ReportReceiver]) -> ReportReceiver:
    return operator_with_office[1]


@pytest.fixture
async def sidecars(lab: TrainingJobLab, engine: Engine) -> AsyncIterator[Sidecars]:
    async with Sidecars.playing(lab, engine) as sidecars:
        yield sidecars


@pytest.fixture
def lab(cluster: Cluster, namespace: str) -> TrainingJobLab:
    return TrainingJobLab(cluster, namespace)
