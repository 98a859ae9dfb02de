"""Health and metrics over real HTTP."""

import socket

import aiohttp
import pytest

from holdfast.httpserver import CannotListen
from holdfast.runtime.http import health_app, metrics_app, serve_app
from holdfast.runtime.metrics import Metrics


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_health_is_ok_while_no_check_fails() -> None:
    async with serve_app(health_app(live=list, ready=list), host="127.0.0.1", port=0, option="--health-port") as port:
        assert await fetch(port, "/healthz") == (200, "ok\n")
        assert await fetch(port, "/readyz") == (200, "ok\n")
        assert (await fetch(port, "/elsewhere"))[0] == 404


async def test_what_is_wrong_is_named_line_by_line_and_asked_anew_each_time() -> None:
    complaints = ["jobs.batch: no answer", "pods: not listed yet"]
    app = health_app(live=list, ready=lambda: complaints)
    async with serve_app(app, host="127.0.0.1", port=0, option="--health-port") as port:
        assert await fetch(port, "/readyz") == (503, "jobs.batch: no answer\npods: not listed yet\n")
        assert await fetch(port, "/healthz") == (200, "ok\n")
        complaints.clear()
        assert await fetch(port, "/readyz") == (200, "ok\n")


async def test_metrics_are_served_as_prometheus_reads_them() -> None:
    metrics = Metrics()
    metrics.requested("create", "jobs.batch", 409, 0.2)
    async with serve_app(metrics_app(metrics.registry), host="127.0.0.1", port=0, option="--metrics-port") as port:
        status, text = await fetch(port, "/metrics")
    assert status == 200
    assert 'holdfast_api_requests_total{code="409",resource="jobs.batch",verb="create"} 1.0' in text
    assert 'holdfast_api_request_duration_seconds_bucket{le="0.25",resource="jobs.batch",verb="create"} 1.0' in text
    assert "process_resident_memory_bytes" in text


async def test_a_port_that_is_taken_is_said_with_the_option_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"cannot listen on port {port}: .*--health-port"):
            async with serve_app(
                health_app(live=list, ready=list), host="127.0.0.1", port=port, option="--health-port"
            ):
                pytest.fail("it must not be served")


async def test_after_the_block_nothing_listens() -> None:
    async with serve_app(metrics_app(Metrics().registry), host="127.0.0.1", port=0, option="--metrics-port") as port:
        pass
    with pytest.raises(aiohttp.ClientConnectorError):
        await fetch(port, "/metrics")
