"""A notice is passed on at once, once, and in the same way whatever fails on the way."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from aiohttp import web

from holdfast.api.meta import Key
from holdfast.cluster.errors import ServerError
from holdfast.cluster.protocol import Body, Resource, T
from holdfast.cluster.resources import NODES
from holdfast.httpserver import listening
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.pods.failure import has_preemption_notice
from tests.control_plane.ports import free_ports
from tests.node.notice.agents import (
    FOREIGN_TAINT,
    NODE,
    ONE_NOTICE,
    READY,
    RecordingCluster,
    a_node,
    a_pod,
    event_messages,
    node_document,
    now,
    preempted_condition,
    taints,
    watching,
)
from tests.node.notice.clouds import (
    DOUBLES,
    AzureDouble,
    ComputeEngineDouble,
    Ec2Double,
    MetadataDouble,
    answers,
    resets,
    scheduled_event,
    serving,
)
from tests.runtime.virtual import virtual

EACH_CLOUD = pytest.mark.parametrize("make", DOUBLES, ids=lambda make: make.cloud)


@EACH_CLOUD
@virtual
async def test_a_notice_is_two_writes_to_the_node_and_one_event(make: Callable[[], MetadataDouble]) -> None:
    double = make()
    async with a_node() as embedded, serving(double) as address:
        cluster = RecordingCluster(embedded)
        async with watching(cluster, address) as agent:
            await asyncio.sleep(20)
            assert cluster.writes == []
            assert agent.watch.remaining_s() is None
            double.preempt(now() + timedelta(seconds=30))
            await asyncio.sleep(10)
            assert sorted(cluster.writes) == ONE_NOTICE
            remaining_s = agent.watch.remaining_s()
            assert remaining_s is not None
            assert 19 <= remaining_s <= 26
            await asyncio.sleep(120)
            assert sorted(cluster.writes) == ONE_NOTICE, "a notice that stands is no new one"
            assert agent.watch.remaining_s() == 0.0
            assert agent.count("holdfast_preemption_notices_total", cloud=double.cloud) == 1
        assert has_preemption_notice(await embedded.get(NODES, Key("", NODE)))


@virtual
async def test_the_mark_says_when_the_node_goes_and_leaves_what_others_have_written() -> None:
    double = Ec2Double()
    async with a_node() as embedded, serving(double) as address, watching(embedded, address):
        await asyncio.sleep(3)
        noticed_at, deadline = now(), now() + timedelta(seconds=118)
        double.preempt(deadline)
        await asyncio.sleep(10)
        (event,) = await event_messages(embedded)
        condition = await preempted_condition(embedded)
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("True", "PreemptionNotice")
        assert condition["message"].startswith(f"EC2 takes this node back at {deadline:%Y-%m-%dT%H:%M:%SZ}, 11")
        assert (
            event == f"PreemptionNotice: {condition['message']}: no new pod comes here, and its trainings are asked "
            "to save"
        )
        assert (await node_document(embedded))["status"]["conditions"][0] == READY
        foreign, ours = await taints(embedded)
        assert foreign == FOREIGN_TAINT
        assert ours["value"] == f"{deadline:%Y%m%dT%H%M%SZ}"
        assert (ours["key"], ours["effect"]) == ("holdfast.dev/preempted", "NoSchedule")
        assert ours["timeAdded"] == condition["lastTransitionTime"] >= f"{noticed_at:%Y-%m-%dT%H:%M:%SZ}"


async def _noticed(cluster: RecordingCluster, address: str, until: Callable[[], bool]) -> None:
    """An agent that runs until something has happened."""
    async with watching(cluster, address):
        for _ in range(600):
            if until():
                return
            await asyncio.sleep(0.1)
    raise AssertionError("it did not happen within a minute")


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it"])
@pytest.mark.parametrize("write", [1, 2, 3])
@EACH_CLOUD
@virtual
async def test_an_agent_that_dies_at_any_write_and_comes_back_ends_in_the_same_place(
    make: Callable[[], MetadataDouble], write: int, after: bool
) -> None:
    double = make()
    async with a_node() as embedded, serving(double) as address:
        deadline = now() + timedelta(seconds=100)
        double.preempt(deadline)
        crashing = RecordingCluster(embedded, write, after=after)
        await _noticed(crashing, address, lambda: crashing.has_crashed)
        await asyncio.sleep(5)
        second = RecordingCluster(embedded)
        async with watching(second, address) as agent:
            await asyncio.sleep(10)
            condition, marks, events = (
                await preempted_condition(embedded),
                await taints(embedded),
                await event_messages(embedded),
            )
            assert condition is not None
            assert condition["status"] == "True"
            assert [taint["key"] for taint in marks] == ["nvidia.com/gpu", "holdfast.dev/preempted"]
            assert len(events) == 1
            done = write if after else write - 1
            assert len(second.writes) == len(ONE_NOTICE) - done, "nothing is written twice"
            if double.cloud == "Compute Engine" and done:
                assert agent.watch.remaining_s() == pytest.approx(14, abs=2), "from the first agent's notice on"


@virtual
async def test_an_agent_that_restarts_after_all_writes_makes_none() -> None:
    double = AzureDouble()
    async with a_node() as embedded, serving(double) as address:
        double.preempt(now() + timedelta(seconds=40))
        first = RecordingCluster(embedded)
        await _noticed(first, address, lambda: len(first.writes) == 3)
        double.withdraw()
        double.events = [scheduled_event(double.name, None, status="Started")]
        second = RecordingCluster(embedded)
        async with watching(second, address) as agent:
            await asyncio.sleep(10)
            assert second.writes == []
            assert agent.watch.remaining_s() == pytest.approx(30, abs=2), "the first agent's time still counts"


@virtual
async def test_a_machine_that_was_started_again_may_get_a_second_notice() -> None:
    double = ComputeEngineDouble()
    async with a_node() as embedded, serving(double) as address:
        double.preempt(now())
        first = RecordingCluster(embedded)
        await _noticed(first, address, lambda: len(first.writes) == 3)
        before = await preempted_condition(embedded)
        await asyncio.sleep(3600)  # stopped, started, and taken back again before an agent could see that it was not
        second = RecordingCluster(embedded)
        async with watching(second, address) as agent:
            await asyncio.sleep(5)
            assert sorted(second.writes) == ONE_NOTICE
            assert agent.watch.remaining_s() == pytest.approx(25, abs=2)
        assert await preempted_condition(embedded) != before
        assert len(await taints(embedded)) == 2


@pytest.mark.parametrize("is_restarted", [False, True], ids=["by the same agent", "by the next one"])
@EACH_CLOUD
@virtual
async def test_a_withdrawn_notice_takes_the_mark_away_and_says_so(
    make: Callable[[], MetadataDouble], is_restarted: bool
) -> None:
    double = make()
    async with a_node() as embedded, serving(double) as address:
        double.preempt(now() + timedelta(seconds=40))
        cluster = RecordingCluster(embedded)
        async with watching(cluster, address) as agent:
            await asyncio.sleep(10)
            if not is_restarted:
                double.withdraw()
                await asyncio.sleep(10)
                assert agent.watch.remaining_s() is None
        if is_restarted:
            double.withdraw()
            async with watching(cluster, address):
                await asyncio.sleep(10)
        assert len(cluster.writes) == 6
        assert await taints(embedded) == [FOREIGN_TAINT]
        condition = await preempted_condition(embedded)
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "NoticeWithdrawn")
        assert not has_preemption_notice(await embedded.get(NODES, Key("", NODE)))
        assert [message.split(":")[0] for message in await event_messages(embedded)] == [
            "PreemptionNotice",
            "NoticeWithdrawn",
        ]


@virtual
async def test_a_taint_that_a_person_has_set_is_left_alone() -> None:
    double = ComputeEngineDouble()
    by_hand = {"key": "holdfast.dev/preempted", "effect": "NoSchedule"}
    async with a_node() as embedded, serving(double) as address:
        await embedded.patch(NODES, Key("", NODE), {"spec": {"taints": [by_hand]}})
        cluster = RecordingCluster(embedded)
        async with watching(cluster, address):
            await asyncio.sleep(100)
        assert cluster.writes == []
        assert await taints(embedded) == [by_hand]


class Contended(RecordingCluster):
    """Before each of the first writes to the Node, its kubelet or another controller writes."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        super().__init__(cluster)
        self.conflicts = 0
        self._kubelet = cluster

    async def _interfere(self) -> None:
        if self.conflicts < 4:
            self.conflicts += 1
            label = {"metadata": {"labels": {"touched": str(self.conflicts)}}}
            await self._kubelet.patch(NODES, Key("", NODE), label)

    async def patch(self, resource: Resource[T], key: Key, patch: Body) -> T:
        await self._interfere()
        return await super().patch(resource, key, patch)

    async def patch_status(self, resource: Resource[T], key: Key, patch: Body) -> T:
        await self._interfere()
        return await super().patch_status(resource, key, patch)


@virtual
async def test_another_writer_of_the_node_is_never_overwritten() -> None:
    double = ComputeEngineDouble()
    async with a_node() as embedded, serving(double) as address:
        cluster = Contended(embedded)
        double.preempt(now())
        async with watching(cluster, address):
            await asyncio.sleep(5)
        assert cluster.conflicts == 4
        assert sorted(cluster.writes) == ONE_NOTICE
        assert (await node_document(embedded))["metadata"]["labels"]["touched"] == "4"
        assert len(await taints(embedded)) == 2


class Failing(RecordingCluster):
    """The API server fails for a while."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        super().__init__(cluster)
        self.failures = 6

    async def get(self, resource: Resource[T], key: Key) -> T:
        if self.failures:
            self.failures -= 1
            raise ServerError("not now")
        return await super().get(resource, key)


@virtual
async def test_a_notice_outlives_a_failing_api_server() -> None:
    double = ComputeEngineDouble()
    async with a_node("gce://p/z/n") as embedded, serving(double) as address:
        cluster = Failing(embedded)
        double.preempt(now())
        async with watching(cluster, address):
            await asyncio.sleep(60)
        assert cluster.failures == 0
        assert sorted(cluster.writes) == ONE_NOTICE


@virtual
async def test_while_neither_the_node_nor_the_metadata_server_answers_the_search_goes_on() -> None:
    double = ComputeEngineDouble()
    async with a_node("gce://p/z/n") as embedded, serving(double) as address:
        cluster = Failing(embedded)
        cluster.failures = 1
        double.faults = [answers(500) for _ in range(9)]
        double.preempt(now())
        async with watching(cluster, address):
            await asyncio.sleep(60)
        assert sorted(cluster.writes) == ONE_NOTICE


@virtual
async def test_a_notice_outlives_a_failing_metadata_server() -> None:
    double = ComputeEngineDouble()
    async with a_node("gce://p/z/n") as embedded, serving(double) as address:
        cluster = RecordingCluster(embedded)
        double.faults = [answers(503), resets, answers(429, Retry_After="3"), answers(200, "maybe")]
        double.preempt(now())
        async with watching(cluster, address) as agent:
            await asyncio.sleep(60)
            assert sorted(cluster.writes) == ONE_NOTICE
            assert agent.count("holdfast_metadata_errors_total", cloud="Compute Engine") == 4


@virtual
async def test_a_metadata_server_that_does_not_hold_questions_is_not_flooded() -> None:
    double = ComputeEngineDouble()
    async with a_node("gce://p/z/n") as embedded, serving(double) as address:
        double.faults = [answers(200, "FALSE", Metadata_Flavor="Google", ETag="x") for _ in range(1000)]
        async with watching(embedded, address):
            await asyncio.sleep(30)
        assert len(double.requests) <= 31


@virtual
async def test_ec2_is_asked_every_five_seconds() -> None:
    double = Ec2Double()
    async with a_node("aws:///eu-west-1a/i-1") as embedded, serving(double) as address:
        async with watching(embedded, address):
            await asyncio.sleep(58)
        assert len([each for each in double.requests if "instance-action" in each]) == 12


@virtual
async def test_on_a_machine_of_no_cloud_the_watch_ends_by_itself() -> None:
    (port,) = free_ports(1)
    async with a_node() as embedded, watching(embedded, f"http://127.0.0.1:{port}") as agent:
        async with asyncio.timeout(60):
            await agent.task
        assert agent.watch.remaining_s() is None


class SidecarDouble:
    """Sidecars of several pods behind one port: each path is a pod's."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.statuses: list[int] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        self.calls.append((f"{request.method} {request.path}", await request.json()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 202, text="asked")


@virtual
async def test_each_sidecar_on_the_node_is_called_and_nobody_else() -> None:
    double, sidecars = ComputeEngineDouble(), SidecarDouble()
    async with (
        a_node() as embedded,
        serving(double) as address,
        listening(sidecars.app(), host="127.0.0.1", port=0) as port,
    ):
        await a_pod(embedded, "w-0", "uid-a")
        await a_pod(embedded, "w-1", "uid-b")
        await a_pod(embedded, "elsewhere", "uid-c", node="another")
        await a_pod(embedded, "ended", "uid-d", phase="Succeeded")
        await a_pod(embedded, "waiting", "uid-e", phase="Pending")
        await a_pod(embedded, "sly", "x/../../etc?a=")
        double.preempt(now())
        async with watching(embedded, address, port=port) as agent:
            deadline_s = (now().replace(microsecond=0) + timedelta(seconds=30)).timestamp()
            await asyncio.sleep(5)
            assert sorted(path for path, _ in sidecars.calls) == ["POST /uid-a/notice", "POST /uid-b/notice"]
            assert {tuple(body.items()) for _, body in sidecars.calls} == {(("node", NODE), ("deadline", deadline_s))}
            assert agent.count("holdfast_preemption_saves_total", result="asked") == 2


@pytest.mark.parametrize(("statuses", "result", "calls"), [([503, 500], "asked", 3), ([404, 307, 500], "failed", 3)])
@virtual
async def test_a_sidecar_that_fails_is_called_again_but_not_for_ever(
    statuses: list[int], result: str, calls: int
) -> None:
    double, sidecars = ComputeEngineDouble(), SidecarDouble()
    sidecars.statuses = statuses
    async with (
        a_node() as embedded,
        serving(double) as address,
        listening(sidecars.app(), host="127.0.0.1", port=0) as port,
    ):
        await a_pod(embedded, "w-0", "uid-a")
        double.preempt(now())
        async with watching(embedded, address, port=port) as agent:
            await asyncio.sleep(20)
            assert len(sidecars.calls) == calls
            assert agent.count("holdfast_preemption_saves_total", result=result) == 1
        assert len(await taints(embedded)) == 2, "the node is marked all the same"


@virtual
async def test_a_pod_that_can_not_be_reached_delays_neither_mark_nor_event() -> None:
    double = ComputeEngineDouble()
    (port,) = free_ports(1)
    async with a_node() as embedded, serving(double) as address:
        await a_pod(embedded, "w-0", "uid-a")
        double.preempt(now())
        async with watching(embedded, address, port=port) as agent:
            await asyncio.sleep(0.5)
            assert len(await taints(embedded)) == 2
            assert len(await event_messages(embedded)) == 1
            assert agent.count("holdfast_preemption_saves_total", result="failed") == 0
            await asyncio.sleep(10)
            assert agent.count("holdfast_preemption_saves_total", result="failed") == 1
