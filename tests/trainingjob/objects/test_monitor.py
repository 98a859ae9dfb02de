"""How Prometheus finds a job's metrics."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.trainingjob.objects.services import enabled_monitoring, scrape_annotations, service_monitor
from tests.trainingjob.objects.family import DEFAULTS, child, children
from tests.trainingjobs import training_job


@pytest.mark.parametrize(
    ("spec", "watched"),
    [({}, False), ({"monitoring": {}}, True), ({"monitoring": {"enabled": False, "metricsPort": 9000}}, False)],
)
def test_a_job_is_watched_when_it_says_so(spec: dict[str, Any], watched: bool) -> None:
    job = training_job(spec)
    assert (enabled_monitoring(job) is not None) is watched
    assert bool(scrape_annotations(job)) is watched
    assert (service_monitor(job) is not None) is watched


def test_a_monitor_scrapes_the_metrics_port_of_worker_0_and_no_other() -> None:
    job = training_job({"monitoring": {}})
    body = service_monitor(job)
    assert body is not None
    assert body["spec"]["endpoints"] == [{"port": "metrics", "path": "/metrics"}]
    selected = [
        each["metadata"]["name"]
        for each in children(job)
        if each["kind"] == "Service"
        and body["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        and "metrics" in {port["name"] for port in each["spec"]["ports"]}
    ]
    assert selected == ["bert-master"]


def test_monitors_are_made_where_the_operator_is_told_to() -> None:
    job = training_job({"monitoring": {}})
    assert "ServiceMonitor" not in {each["kind"] for each in children(job)}
    assert child("ServiceMonitor", job, structs.replace(DEFAULTS, service_monitors=True))["metadata"]["name"] == (
        "bert-master"
    )
