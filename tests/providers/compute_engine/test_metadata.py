"""The metadata server of a machine, which the node agent of holdfast understands."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest

from holdfast.node.notice.compute_engine import ComputeEngine as NoticeSource
from holdfast.node.notice.metadata import metadata_server
from tests.providers.compute_engine.client import client
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.machine import QUICK, FakeMachine
from tests.providers.compute_engine.metadata import serving_metadata
from tests.providers.gcp.lab import NAME, spec

GOOGLE = {"Metadata-Flavor": "Google"}
SPEC = spec(metadata={"enable-guest-attributes": "TRUE", "startup-script": "#!/bin/sh\nexit 0"})


@pytest.fixture
async def cloud() -> AsyncIterator[ComputeEngine]:
    async with client(QUICK) as it:
        await it.machine(SPEC)
        yield it.cloud


@pytest.fixture
def machine(cloud: ComputeEngine) -> FakeMachine:
    return cloud.machine(NAME)


@pytest.fixture
async def address(machine: FakeMachine) -> AsyncIterator[str]:
    async with serving_metadata(machine) as address:
        yield f"{address}/computeMetadata/v1"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def read(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] = GOOGLE
) -> tuple[int, str, Mapping[str, str]]:
    async with session.get(url, headers=headers) as response:
        return response.status, await response.text(), response.headers


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("instance/name", NAME),
        ("instance/zone", "projects/123456789012/zones/us-central1-a"),
        ("instance/preempted", "FALSE"),
        ("instance/scheduling/preemptible", "TRUE"),
        ("instance/attributes/startup-script", "#!/bin/sh\nexit 0"),
        ("instance/attributes/", "enable-guest-attributes\nstartup-script\n"),
        ("project/project-id", "my-gcp-project"),
    ],
)
async def test_what_a_machine_can_read_of_itself(
    session: aiohttp.ClientSession, address: str, path: str, value: str
) -> None:
    status, text, headers = await read(session, f"{address}/{path}")
    assert (status, text) == (200, value)
    assert headers["Metadata-Flavor"] == "Google"
    assert headers["ETag"]


async def test_what_there_is_not(session: aiohttp.ClientSession, address: str) -> None:
    for path in ("instance/attributes/nothing", "instance/guest-attributes/hostkeys/ssh-ed25519", "nothing"):
        assert (await read(session, f"{address}/{path}"))[0] == 404
    assert (await read(session, address.removesuffix("/computeMetadata/v1")))[0] == 404


async def test_without_the_header_the_metadata_server_refuses(session: aiohttp.ClientSession, address: str) -> None:
    assert (await read(session, f"{address}/instance/name", {}))[0] == 403
    assert (await read(session, f"{address}/instance/name", {**GOOGLE, "X-Forwarded-For": "10.0.0.1"}))[0] == 403


async def test_a_question_is_held_until_the_value_is_another(
    session: aiohttp.ClientSession, address: str, cloud: ComputeEngine, machine: FakeMachine
) -> None:
    _, _, headers = await read(session, f"{address}/instance/preempted")
    held = f"{address}/instance/preempted?wait_for_change=true&timeout_sec=60&last_etag={headers['ETag']}"
    asking = asyncio.create_task(read(session, held))
    await machine.held_question.wait()
    machine.write_guest_attribute("another", "value", "changes")
    assert not asking.done()
    cloud.preempt(machine)
    status, text, after = await asking
    assert (status, text) == (200, "TRUE")
    assert after["ETag"] != headers["ETag"]


async def test_a_question_about_an_older_value_is_answered_at_once(
    session: aiohttp.ClientSession, address: str
) -> None:
    url = f"{address}/instance/preempted?wait_for_change=true&last_etag=0"
    assert (await read(session, url))[1] == "FALSE"


async def test_a_held_question_is_answered_when_its_time_is_over(session: aiohttp.ClientSession, address: str) -> None:
    assert (await read(session, f"{address}/instance/preempted?wait_for_change=true&timeout_sec=0"))[1] == "FALSE"


async def test_a_guest_publishes_its_host_key(
    session: aiohttp.ClientSession, address: str, machine: FakeMachine
) -> None:
    url = f"{address}/instance/guest-attributes/hostkeys/ssh-ed25519"
    async with session.put(url, data="AAAA", headers=GOOGLE) as response:
        assert response.status == 200
    assert machine.guest_attributes == {("hostkeys", "ssh-ed25519"): "AAAA"}
    assert (await read(session, url))[1] == "AAAA"
    async with session.put(f"{address}/instance/name", data="x", headers=GOOGLE) as response:
        assert response.status == 405


async def test_guest_attributes_have_to_be_enabled(
    session: aiohttp.ClientSession, address: str, machine: FakeMachine
) -> None:
    machine.attributes.clear()
    url = f"{address}/instance/guest-attributes/hostkeys/ssh-ed25519"
    async with session.put(url, data="AAAA", headers=GOOGLE) as response:
        assert response.status == 403


async def test_the_node_agent_gets_its_notice_from_it(address: str, cloud: ComputeEngine, machine: FakeMachine) -> None:
    async with metadata_server(address.removesuffix("/computeMetadata/v1")) as server:
        source = NoticeSource(server)
        assert await source.is_here()
        assert await source.current_notice() is None
        waiting = asyncio.create_task(source.current_notice())
        await machine.held_question.wait()
        assert not waiting.done()
        cloud.preempt(machine)
        notice = await waiting
        assert notice is not None
        assert notice.cloud == "Compute Engine"
