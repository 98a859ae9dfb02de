"""ServiceMonitors, where the operator is to make them: with the Prometheus Operator's definitions and without."""

from collections.abc import AsyncIterator

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import SERVICE_MONITORS
from holdfast.pods.template import Defaults
from tests.contract.kinds import DEFINITIONS, established
from tests.contract.pool import Pool
from tests.contract.waiting import gone, until
from tests.controllers.operating import DEFAULTS
from tests.trainingjob.controller.lab import TrainingJobLab

pytestmark = pytest.mark.usefixtures("operator")

NAME = "servicemonitors.monitoring.coreos.com"
DEFINITION: JSON = {
    "metadata": {"name": NAME},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"plural": "servicemonitors", "singular": "servicemonitor", "kind": "ServiceMonitor"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


@pytest.fixture
def defaults() -> Defaults:
    return Defaults(image=DEFAULTS.image, holdfast_image=DEFAULTS.holdfast_image, service_monitors=True)


@pytest.fixture
async def prometheus(cluster: Cluster) -> AsyncIterator[None]:
    await cluster.create(DEFINITIONS, DEFINITION)
    await until(cluster, DEFINITIONS, Key("", NAME), established, "is established")
    yield
    await cluster.delete(DEFINITIONS, Key("", NAME))
    await gone(cluster, DEFINITIONS, Key("", NAME))


async def test_a_job_that_is_watched_waits_for_no_monitor(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(monitoring={"enabled": True})
    await lab.until_state("Running")


@pytest.mark.usefixtures("prometheus")
@pytest.mark.every_engine
async def test_a_job_that_is_watched_gets_its_monitor(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    made = await lab.submit(monitoring={"enabled": True})
    monitor = await until(lab.cluster, SERVICE_MONITORS, lab.key("bert-master"), bool, "is made")
    owner = monitor.metadata.controller
    assert owner is not None
    assert owner.uid == made.metadata.uid
    await lab.until_state("Running")
