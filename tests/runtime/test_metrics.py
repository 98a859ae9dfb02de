"""Every metric has its name, its labels, and its own registry."""

import pytest

from holdfast.runtime.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_two_operators_in_one_process_do_not_count_together() -> None:
    one, two = Metrics(), Metrics()
    one.retried("thing")
    assert value(one, "holdfast_reconcile_retries_total", controller="thing") == 1
    assert value(two, "holdfast_reconcile_retries_total", controller="thing") is None


def test_what_is_counted_is_under_its_name() -> None:
    metrics = Metrics()
    metrics.reconciled("thing", "done", 0.3)
    metrics.reconciled("thing", "error", 0.3)
    metrics.watch_restarted("pods", "expired")
    metrics.handler_failed("pods")
    metrics.undecodable("pods")
    metrics.requested("list", "pods", 200, 0.01)
    metrics.event_dropped("rate", 4)
    assert value(metrics, "holdfast_reconciles_total", controller="thing", result="error") == 1
    assert value(metrics, "holdfast_reconcile_duration_seconds_count", controller="thing") == 2
    assert value(metrics, "holdfast_watch_restarts_total", resource="pods", reason="expired") == 1
    assert value(metrics, "holdfast_handler_errors_total", resource="pods") == 1
    assert value(metrics, "holdfast_undecodable_objects_total", resource="pods") == 1
    assert value(metrics, "holdfast_api_requests_total", verb="list", resource="pods", code="200") == 1
    assert value(metrics, "holdfast_api_request_duration_seconds_count", verb="list", resource="pods") == 1
    assert value(metrics, "holdfast_events_dropped_total", reason="rate") == 4


@pytest.mark.parametrize("leads", [True, False])
def test_the_leader_gauge_says_whether_the_operator_leads(leads: bool) -> None:
    metrics = Metrics()
    assert value(metrics, "holdfast_leader") == 0
    metrics.leading(leads)
    assert value(metrics, "holdfast_leader") == leads


def test_the_queue_depth_is_read_when_it_is_asked_for() -> None:
    metrics = Metrics()
    waiting = ["a"]
    metrics.track_queue("thing", lambda: len(waiting))
    waiting.append("b")
    assert value(metrics, "holdfast_queue_depth", controller="thing") == 2


def test_every_metric_is_named_for_holdfast_or_its_process_and_explained() -> None:
    for metric in Metrics().registry.collect():
        assert metric.name.startswith(("holdfast_", "process_"))
        assert metric.documentation
