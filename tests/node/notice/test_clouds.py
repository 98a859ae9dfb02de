"""What each cloud's metadata server is asked, and what its answers mean."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from holdfast.node.notice.azure import Azure
from holdfast.node.notice.clouds import find_source, notice_sources
from holdfast.node.notice.compute_engine import ComputeEngine
from holdfast.node.notice.ec2 import TOKEN_LIFE_S, Ec2
from holdfast.node.notice.metadata import (
    LARGEST_ANSWER,
    MetadataError,
    MetadataUnreachable,
    PreemptionNotice,
    metadata_server,
)
from tests.control_plane.ports import free_ports
from tests.node.notice.clouds import (
    DOUBLES,
    AzureDouble,
    ComputeEngineDouble,
    Ec2Double,
    MetadataDouble,
    Misbehaviour,
    answers,
    is_silent,
    resets,
    scheduled_event,
    serving,
)
from tests.runtime.virtual import now_s, settled, virtual

DEADLINE = datetime(2026, 11, 18, 14, 30, 2, tzinfo=UTC)
EACH_CLOUD = pytest.mark.parametrize("make", DOUBLES, ids=lambda make: make.cloud)


@EACH_CLOUD
async def test_a_machine_is_found_in_its_cloud_and_in_no_other(make: Callable[[], MetadataDouble]) -> None:
    double = make()
    async with serving(double) as address, metadata_server(address) as server:
        found = await find_source(server, "")
        assert found is not None
        assert found.cloud == double.cloud


@pytest.mark.parametrize(
    ("provider_id", "cloud"),
    [
        ("gce://project/zone/name", "Compute Engine"),
        ("aws:///eu-west-1a/i-0123", "EC2"),
        ("azure:///subscriptions/0/x", "Azure"),
    ],
)
async def test_the_provider_id_names_the_cloud_without_a_question(provider_id: str, cloud: str) -> None:
    (port,) = free_ports(1)
    async with metadata_server(f"http://127.0.0.1:{port}") as server:
        found = await find_source(server, provider_id)
        assert found is not None
        assert found.cloud == cloud


@virtual
async def test_where_nobody_answers_there_is_no_cloud() -> None:
    (port,) = free_ports(1)
    async with metadata_server(f"http://127.0.0.1:{port}") as server:
        assert await find_source(server, "kind://docker/kind/node") is None


@virtual
async def test_a_metadata_server_that_is_late_at_boot_is_asked_again() -> None:
    double = ComputeEngineDouble()
    double.faults = [is_silent]
    async with serving(double) as address, metadata_server(address) as server:
        found = await find_source(server, "")
        assert found is not None
        assert found.cloud == "Compute Engine"


@virtual
async def test_a_foreign_metadata_server_is_no_cloud_of_ours() -> None:
    double = ComputeEngineDouble()
    double.faults = [answers(404) for _ in range(9)]
    async with serving(double) as address, metadata_server(address) as server:
        assert await find_source(server, "openstack:///x") is None
        assert len(double.requests) == 9


@EACH_CLOUD
async def test_a_notice_stands_while_the_cloud_says_so(make: Callable[[], MetadataDouble]) -> None:
    double = make()
    async with serving(double) as address, metadata_server(address) as server:
        source = await find_source(server, "")
        assert source is not None
        assert await source.current_notice() is None
        double.preempt(DEADLINE)
        expected = None if double.cloud == "Compute Engine" else DEADLINE
        assert await source.current_notice() == PreemptionNotice(cloud=double.cloud, deadline=expected)
        double.withdraw()
        assert await source.current_notice() is None


@virtual
async def test_compute_engine_holds_the_question_until_the_value_changes() -> None:
    double = ComputeEngineDouble()
    async with serving(double) as address, metadata_server(address) as server:
        source = ComputeEngine(server)
        assert await source.current_notice() is None
        began_s = now_s()
        asked = asyncio.create_task(source.current_notice())
        await asyncio.sleep(20)
        double.preempt(DEADLINE)
        assert await asked == PreemptionNotice(cloud="Compute Engine")
        assert now_s() - began_s == pytest.approx(20)
        path = "GET /computeMetadata/v1/instance/preempted"
        assert double.requests == [path, f"{path}?wait_for_change=true&timeout_sec=60&last_etag=etag%2B/None"]


@virtual
async def test_compute_engine_answers_a_held_question_in_the_end_though_nothing_changed() -> None:
    double = ComputeEngineDouble()
    async with serving(double) as address, metadata_server(address) as server:
        source = ComputeEngine(server)
        for _ in range(3):
            assert await source.current_notice() is None
        assert now_s() == pytest.approx(1000 + 2 * 60)


@virtual
async def test_after_a_failure_compute_engine_is_asked_for_the_value_as_it_is() -> None:
    double = ComputeEngineDouble()
    async with serving(double) as address, metadata_server(address) as server:
        source = ComputeEngine(server)
        assert await source.current_notice() is None
        double.faults = [resets]
        with pytest.raises(MetadataError):
            await source.current_notice()
        double.preempt(DEADLINE)
        assert await source.current_notice() is not None
        assert double.requests[-1] == "GET /computeMetadata/v1/instance/preempted"


async def test_an_answer_without_googles_header_is_not_googles() -> None:
    double = ComputeEngineDouble()
    double.faults = [answers(200, "TRUE", ETag="x")]
    async with serving(double) as address, metadata_server(address) as server:
        with pytest.raises(MetadataError, match="no header Metadata-Flavor"):
            await ComputeEngine(server).current_notice()


@virtual
async def test_an_ec2_token_serves_many_questions_and_is_renewed_in_time() -> None:
    double = Ec2Double()
    async with serving(double) as address, metadata_server(address) as server:
        source = Ec2(server)
        for _ in range(10):
            await source.current_notice()
        assert len(double.tokens) == 1
        await asyncio.sleep(TOKEN_LIFE_S / 2)
        await source.current_notice()
        assert len(double.tokens) == 2


async def test_an_ec2_token_that_is_refused_is_replaced_at_once() -> None:
    double = Ec2Double()
    double.preempt(DEADLINE)
    async with serving(double) as address, metadata_server(address) as server:
        source = Ec2(server)
        await source.current_notice()
        double.tokens.append("another")
        assert await source.current_notice() == PreemptionNotice(cloud="EC2", deadline=DEADLINE)


async def test_switched_off_instance_metadata_is_told_as_that() -> None:
    double = Ec2Double()
    double.faults = [answers(403)]
    async with serving(double) as address, metadata_server(address) as server:
        with pytest.raises(MetadataError, match="switch on the instance's metadata"):
            await Ec2(server).current_notice()


@pytest.mark.parametrize("token", ["", "two\nlines", "x" * 2000, "gr\u00fc\u00df"])
async def test_a_text_that_is_no_token_is_neither_sent_nor_quoted(token: str) -> None:
    double = Ec2Double()
    double.faults = [answers(200, token)]
    async with serving(double) as address, metadata_server(address) as server:
        with pytest.raises(MetadataError, match="no token") as caught:
            await Ec2(server).current_notice()
        assert token == "" or token not in str(caught.value)
        assert len(double.requests) == 1


@pytest.mark.parametrize(
    ("event", "is_meant"),
    [
        (scheduled_event("AKS-spot-vmss_3", DEADLINE), True),
        (scheduled_event("aks-spot-vmss_3", DEADLINE, status="Started"), True),
        (scheduled_event("aks-spot-vmss_3", DEADLINE, status="Canceled"), False),
        (scheduled_event("aks-spot-vmss_3", DEADLINE, status="Completed"), False),
        (scheduled_event("aks-spot-vmss_4", DEADLINE), False),
        (scheduled_event("aks-spot-vmss_3", DEADLINE, kind="Freeze"), False),
        (scheduled_event("aks-spot-vmss_3", DEADLINE, kind="Reboot"), False),
    ],
    ids=["scheduled", "started", "cancelled", "completed", "another machine", "freeze", "reboot"],
)
async def test_of_azures_events_only_a_preemption_of_this_machine_counts(
    event: dict[str, object], is_meant: bool
) -> None:
    double = AzureDouble()
    double.events = [event]
    async with serving(double) as address, metadata_server(address) as server:
        notice = await Azure(server).current_notice()
        assert notice == (PreemptionNotice(cloud="Azure", deadline=DEADLINE) if is_meant else None)


async def test_the_earliest_of_azures_times_counts_and_a_started_event_has_none() -> None:
    double = AzureDouble()
    later = DEADLINE + timedelta(seconds=90)
    double.events = [scheduled_event(double.name, later), scheduled_event(double.name, DEADLINE)]
    async with serving(double) as address, metadata_server(address) as server:
        source = Azure(server)
        assert await source.current_notice() == PreemptionNotice(cloud="Azure", deadline=DEADLINE)
        double.events = [scheduled_event(double.name, None, status="Started")]
        assert await source.current_notice() == PreemptionNotice(cloud="Azure")


@virtual
async def test_azure_may_take_two_minutes_for_its_first_answer() -> None:
    double = AzureDouble()

    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(120)
        return await double.respond(request)

    double.faults = [answers(200, double.name), late]
    async with serving(double) as address, metadata_server(address) as server:
        assert await Azure(server).current_notice() is None


FAULTS: dict[str, tuple[Misbehaviour, str]] = {
    "a server error": (answers(500), "with 500"),
    "no such path": (answers(410), "with 410"),
    "a limit": (answers(429, Retry_After="7"), "with 429"),
    "a redirect": (answers(302, Location="http://127.0.0.1:1/"), "redirects .*, which is not followed"),
    "a reset": (resets, "breaks off"),
    "too much": (answers(200, "x" * (LARGEST_ANSWER + 1), Metadata_Flavor="Google"), "breaks off"),
    "garbage": (answers(200, "<html>\x1b[31m", Metadata_Flavor="Google"), r"with '<html>\\x1b\[31m' instead of"),
    "other JSON": (answers(200, '{"action": 1}', Metadata_Flavor="Google"), "instead of"),
}


@pytest.mark.parametrize("fault", FAULTS)
@EACH_CLOUD
async def test_whatever_a_metadata_server_answers_is_an_error_in_a_sentence(
    make: Callable[[], MetadataDouble], fault: str
) -> None:
    double = make()
    async with serving(double) as address, metadata_server(address) as server:
        source = next(each for each in notice_sources(server) if each.cloud == double.cloud)
        await source.current_notice()
        misbehaviour, words = FAULTS[fault]
        double.preempt(DEADLINE)
        double.faults = [misbehaviour]
        with pytest.raises(MetadataError, match=words) as caught:
            await source.current_notice()
        assert caught.value.retry_after_s == (7.0 if fault == "a limit" else None)
        assert await source.current_notice() is not None, "the next question is answered"


async def test_a_metadata_server_that_asks_for_a_long_pause_gets_a_short_one() -> None:
    double = Ec2Double()
    double.faults = [answers(503, Retry_After="3600")]
    async with serving(double) as address, metadata_server(address) as server:
        with pytest.raises(MetadataError) as caught:
            await Ec2(server).current_notice()
        assert caught.value.retry_after_s == 10.0


@virtual
async def test_a_silent_metadata_server_is_given_up_in_time() -> None:
    double = Ec2Double()
    double.faults = [is_silent]
    async with serving(double) as address, metadata_server(address) as server:
        began_s = now_s()
        with pytest.raises(MetadataUnreachable, match="within 5 s"):
            await Ec2(server).current_notice()
        assert now_s() - began_s < 10
        await settled()


async def test_no_proxy_of_the_environment_sees_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    double = ComputeEngineDouble()
    async with serving(double) as address, metadata_server(address) as server:
        assert await ComputeEngine(server).is_here()
