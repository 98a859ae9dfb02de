"""What promtool says of the metrics, and the metrics of an operator that runs on a real API server."""

import http.client
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.control_plane.server import ControlPlane
from tests.monitoring.catalogue import exposed
from tests.monitoring.conftest import Promtool
from tests.monitoring.samples import agent_registry, operator_registry
from tests.operator.conftest import StartOperator, install_kinds

# The name is part of the interface that dashboards of others count on, although it is a gauge's.
KNOWN = 'trainingjob_total non-counter metrics should not have "_total" suffix'
JOB = """
apiVersion: ml.example.com/v1
kind: TrainingJob
metadata: {name: bert}
spec: {model: cnn, dataset: mnist, numWorkers: 1, gpusPerWorker: 0}
"""


@pytest.fixture
def served(control_plane: ControlPlane, namespace: str, start_operator: StartOperator) -> str:
    """What the operator serves while it has a job."""
    install_kinds(control_plane)
    operator = start_operator(control_plane, f"--namespace={namespace}", "--no-leader-elect")
    control_plane.kubectl("apply", "-n", namespace, "-f", "-", input=JOB)
    control_plane.kubectl("wait", "-n", namespace, "tj/bert", "--for=jsonpath={.status.state}", "--timeout=120s")
    connection = http.client.HTTPConnection(control_plane.address, operator.metrics_port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_promtool_finds_nothing_that_is_not_known(served: str, promtool: Promtool) -> None:
    said = promtool("check", "metrics", text=served, codes=(0, 3))
    assert said.splitlines() == [KNOWN]


@pytest.mark.parametrize(("registry", "known"), [(operator_registry, [KNOWN]), (agent_registry, [])])
def test_promtool_finds_nothing_where_every_metric_has_values(
    promtool: Promtool, registry: Callable[[], CollectorRegistry], known: list[str]
) -> None:
    scraped = registry()
    generate_latest(scraped)  # labels come with the first values
    said = promtool("check", "metrics", text=generate_latest(scraped).decode(), codes=(0, 3))
    assert said.splitlines() == known


def test_the_operator_has_the_metrics_of_the_catalogue_and_no_others(served: str) -> None:
    """The registry that the tests of rules and dashboards use has what this one has."""
    live, tried = exposed(text_string_to_metric_families(served)), exposed(operator_registry().collect())
    assert {name: each.type for name, each in live.items()} == {name: each.type for name, each in tried.items()}
    assert 'trainingjob_jobs{namespace="' in served
    assert "holdfast_leader 1.0" in served
