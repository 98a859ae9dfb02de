"""Over a real connection: the same calls, and every way in which an answer can fail to come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random

import pytest
from aiohttp import web

from holdfast.cluster.errors import NotLeading
from holdfast.errors import HoldfastError
from holdfast.httpserver import listening
from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.endpoint import GOOGLE, endpoint_at
from holdfast.providers.gcp.http import AiohttpHttp, HttpRequest, HttpResponse, NoAnswer
from holdfast.providers.gcp.provider import GcpProvider, connect
from tests.control_plane.ports import free_ports
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.faults import lost
from tests.providers.compute_engine.machine import QUICK
from tests.providers.compute_engine.server import serving
from tests.providers.gcp.lab import CLUSTER, NAME, SPEC, UID, ZONE


def wall_clock() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def over_http() -> AsyncIterator[tuple[ComputeEngine, GcpProvider]]:
    cloud = ComputeEngine(now=wall_clock, pace=QUICK)
    account = parse_service_account(cloud.add_account().key_file())
    async with serving(cloud) as address:
        provider = connect(
            PROJECT,
            account,
            now=wall_clock,
            random=Random(0),
            require_leadership=lambda: None,
            endpoint=endpoint_at(address),
        )
        yield cloud, provider
        await provider.close()
    await cloud.close()


async def test_the_life_of_a_machine() -> None:
    async with over_http() as (cloud, provider):
        running = asyncio.Event()
        cloud.hooks.on_running = lambda machine: running.set()
        machine = await provider.launch(SPEC)
        await running.wait()
        cloud.machine(NAME).publish_host_key("ssh-ed25519", "AAAA")
        assert await provider.host_keys(ZONE, NAME) == ("ssh-ed25519 AAAA",)
        assert [one.id for one in (await provider.list(CLUSTER)).machines] == [machine.id]
        assert len(await provider.zones()) == 10
        await provider.delete(ZONE, NAME, UID)
        assert not (await provider.list(CLUSTER)).machines
        assert not await provider.is_preempted(ZONE, NAME, machine.id)


async def test_an_insert_whose_answer_is_lost_on_the_way() -> None:
    async with over_http() as (cloud, provider):
        cloud.faults.add("instances.insert", lost(executed=True))
        await provider.launch(SPEC)
        assert len(cloud.made) == 1


async def answer(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    match request.path:
        case "/echo":
            body = await request.text()
            return web.Response(text=f"{request.method} {request.query_string} {body}", headers={"Retry-After": "3"})
        case "/redirect":
            return web.Response(status=302, headers={"Location": "http://evil.example/"})
        case "/silence":
            await asyncio.Event().wait()
        case "/reset":
            request.transport.abort()
        case "/half":
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            request.transport.abort()
            return response
    return web.Response(status=404)


@pytest.fixture
async def server() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with listening(app, host="127.0.0.1", port=0, shutdown_timeout_s=0.1) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def http() -> AsyncIterator[AiohttpHttp]:
    it = AiohttpHttp()
    yield it
    await it.close()


async def test_a_request_arrives_as_it_is(server: str, http: AiohttpHttp) -> None:
    query = {"filter": 'targetLink eq ".*/instances/(a|b)"', "x": "a+b&c"}
    response = await http.send(HttpRequest(method="POST", url=f"{server}/echo", query=query, body=b"{}"))
    assert response.status == 200
    assert response.headers["retry-after"] == "3"
    sent = response.body.decode()
    assert sent.startswith("POST filter=")
    assert sent.endswith(" {}")
    assert HttpRequest(method="GET", url="http://x", query=query).full_url.count("&") == 1


async def test_a_redirect_is_not_followed(server: str, http: AiohttpHttp) -> None:
    assert (await http.send(HttpRequest(method="GET", url=f"{server}/redirect"))).status == 302


@pytest.mark.parametrize(
    ("path", "timeout_s", "said"),
    [
        ("/silence", 0.2, "127.0.0.1 did not answer within 0.2 s"),
        ("/reset", 10.0, "127.0.0.1 broke off"),
        ("/half", 10.0, "127.0.0.1 broke off"),
    ],
)
async def test_an_answer_that_does_not_come(
    server: str, http: AiohttpHttp, path: str, timeout_s: float, said: str
) -> None:
    for method in ("GET", "DELETE"):
        with pytest.raises(NoAnswer, match=said):
            await http.send(HttpRequest(method=method, url=f"{server}{path}", timeout_s=timeout_s))


async def test_a_port_where_nobody_listens(http: AiohttpHttp) -> None:
    (port,) = free_ports(1)
    with pytest.raises(NoAnswer, match=r"127\.0\.0\.1 can't be reached"):
        await http.send(HttpRequest(method="GET", url=f"http://127.0.0.1:{port}/"))


async def test_the_gate_is_asked_before_each_sending_and_closes_it(server: str, http: AiohttpHttp) -> None:
    asked = 0

    def gate() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise NotLeading("not any more")

    request = HttpRequest(method="POST", url=f"{server}/echo", gate=gate)
    assert (await http.send(request)).status == 200
    with pytest.raises(NotLeading):
        await http.send(request)
    assert asked == 2


def test_nothing_of_a_request_or_an_answer_is_shown_but_its_address_and_status() -> None:
    request = HttpRequest(method="GET", url="http://x/y", headers={"Authorization": "Bearer t"}, body=b"secret")
    assert repr(request) == "HttpRequest(GET http://x/y)"
    assert repr(HttpResponse(status=200, body=b"secret")) == "HttpResponse(200)"


def test_the_endpoint_is_googles_unless_the_operator_has_another() -> None:
    assert endpoint_at("") is GOOGLE
    assert GOOGLE.compute == "https://compute.googleapis.com/compute/v1"
    assert GOOGLE.token_uri == "https://oauth2.googleapis.com/token"
    own = endpoint_at("http://127.0.0.1:8080/")
    assert (own.compute, own.token_uri) == ("http://127.0.0.1:8080/compute/v1", "http://127.0.0.1:8080/token")


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "ftp://x", "http://", "http://x/compute", "http://x?a=b", "x"])
def test_an_invalid_address_is_reported(address: str) -> None:
    with pytest.raises(HoldfastError, match=r"HOLDFAST_GCP_ENDPOINT is .*: write scheme, host and port"):
        endpoint_at(address)
